#!/usr/bin/env bash
# From nothing to a job that survived a kill: `scripts/bare_debian.sh WHEEL [FOLDER]`, as root on Debian.
# FOLDER gets a bare Debian 12 (debootstrap, 200 MB), which is kept for the next time. In it, as a new
# user would: install Python, then the wheel, and kill a worker. No compiler is there. It prints the seconds.
set -eu
wheel=$1
root=${2:-build/bare-debian}
if [ ! -x "$root/usr/bin/apt-get" ]; then
    debootstrap --variant=minbase bookworm "$root"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$wheel" "$work"
sed -n '/^```python$/,/^```$/{/^```/!p}' README.md | sed '/>>> import/,$d' >"$work/tasks.py"
if [ -n "${PIP_CERT:-}" ]; then cp "$PIP_CERT" "$work/pip.crt"; fi
cat >"$work/session" <<'EOF'
set -eu
cd /new
export DEBIAN_FRONTEND=noninteractive
if [ -f pip.crt ]; then export PIP_CERT=/new/pip.crt; fi
say() { echo "$SECONDS s: $*"; }
apt-get -qq update
apt-get -qq -y --no-install-recommends install python3 python3-venv >/dev/null 2>&1
say "Python is installed"
python3 -m venv env
env/bin/pip --quiet install ./*.whl
say "Streamkeep is installed: $(env/bin/streamkeep --version | grep modules)"
PATH=/new/env/bin:$PATH
python -c 'from tasks import pack; pack.delay("apples"); pack.delay("pears")'
streamkeep work tasks:queue >first 2>log &
until grep -q apples first; do sleep 0.05; done
kill -9 $!
say "the worker is killed"
streamkeep work tasks:queue >second 2>>log &
until grep -q pears second; do sleep 0.05; done
grep -q apples second
say "the job survived: $(tr '\n' ' ' <second)"
kill $!
wait $! || true
EOF
# Over the bare system, in memory: it stays bare for the next time.
# shellcheck disable=SC2016
unshare --mount --pid --fork bash -eu -c '
    mkdir "$2/over"
    mount -t tmpfs new "$2/over"
    cd "$2/over"
    mkdir upper work whole
    mount -t overlay over -o "lowerdir=$1,upperdir=upper,workdir=work" whole
    mkdir whole/new
    cp "$2"/*.whl "$2"/tasks.py "$2"/session whole/new
    [ ! -f "$2/pip.crt" ] || cp "$2/pip.crt" whole/new
    cp /etc/resolv.conf whole/etc
    mount -t proc proc whole/proc
    if chroot whole sh -c "command -v gcc || command -v cc"; then echo "a compiler is there"; exit 1; fi
    chroot whole env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin bash /new/session' session "$(realpath "$root")" "$work"

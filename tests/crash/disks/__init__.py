"""Real file systems on disks that record each write, lose their power, or fail.

`recorder` is a file system (FUSE) of one file, the image of a disk. Another file system is made in
it and mounted through a loop device, so the recorder sees what that one writes and flushes, in
order, for all processes, mapped pages included. `history` builds from this what the disk may hold
after a power loss at any moment. `work` is what processes do with a store on it, and what must be
there afterwards. `outsider` is the program that does all this, in a mount namespace of its own.
"""

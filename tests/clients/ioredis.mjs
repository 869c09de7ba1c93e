// A session of ioredis as in Redis's introduction to streams; prints what each call returned.
// Arguments: the folder with node_modules, the path of the server's socket.
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [folder, path] = process.argv.slice(2);
const Redis = createRequire(join(folder, 'session.js'))('ioredis');
const client = new Redis(path);
const other = new Redis(path);

async function show(name, ...args) {
  let found;
  try {
    found = await client[name](...args);
  } catch (error) {
    found = { error: error.message };
  }
  if (name === 'xpending' && args.length > 2) found = found.map((row) => [row[0], row[1], row[3]]);
  console.log(name, JSON.stringify(found));
}

await show('xadd', 'readings', '1518951480106-0', 'sensor-id', 1234, 'temperature', 19.8);
await show('xadd', 'readings', '1518951482479-0', 'sensor-id', 9999, 'temperature', 18.2);
await show('xadd', 'readings', '1-0', 'sensor-id', 9999);
await show('xlen', 'readings');
await show('xrange', 'readings', '-', '+', 'COUNT', 2);
await show('xrevrange', 'readings', '+', '-', 'COUNT', 1);
await show('xread', 'COUNT', 2, 'STREAMS', 'readings', 0);
await show('xread', 'BLOCK', 5, 'STREAMS', 'readings', '$');

const waiting = show('xread', 'BLOCK', 0, 'STREAMS', 'readings', '1518951482479-0');
await other.xadd('readings', '1518951482480-0', 'late', 'yes');
await waiting;

await show('xgroup', 'CREATE', 'fruit', 'mygroup', '$', 'MKSTREAM');
await show('xgroup', 'CREATE', 'fruit', 'mygroup', '$');
for (const [ms, fruit] of ['apple', 'orange', 'strawberry'].entries()) {
  await show('xadd', 'fruit', `${ms + 1}-0`, 'message', fruit);
}
await show('xreadgroup', 'GROUP', 'mygroup', 'Alice', 'COUNT', 2, 'STREAMS', 'fruit', '>');
await show('xack', 'fruit', 'mygroup', '1-0');
await show('xpending', 'fruit', 'mygroup');
await show('xpending', 'fruit', 'mygroup', '-', '+', 10);
await show('xclaim', 'fruit', 'mygroup', 'Bob', 0, '2-0');
await show('xautoclaim', 'fruit', 'mygroup', 'Lora', 0, '0-0', 'COUNT', 1);
await show('xinfo', 'GROUPS', 'fruit');
await show('xreadgroup', 'GROUP', 'nosuch', 'Alice', 'STREAMS', 'fruit', '>');
console.log('pipeline', JSON.stringify(await client.pipeline().xlen('fruit').type('fruit').exec()));
console.log('multi', JSON.stringify(await client.multi().xadd('fruit', '9-0', 'a', 'b').exec()));
client.disconnect();
other.disconnect();

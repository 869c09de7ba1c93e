// A session of node-redis as in Redis's introduction to streams; prints what each call returned.
// Arguments: the folder with node_modules, the path of the server's socket, 2 or 3.
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [folder, path, protocol] = process.argv.slice(2);
const { createClient } = createRequire(join(folder, 'session.js'))('redis');
const options = { socket: { path }, RESP: Number(protocol) };
const client = await createClient(options).connect();
const other = await createClient(options).connect();

async function show(name, ...args) {
  let found;
  try {
    found = await client[name](...args);
  } catch (error) {
    found = { error: error.message };
  }
  console.log(name, JSON.stringify(found, (key, value) =>
    /millisecondsSince|idle|inactive/i.test(key) && value >= 0 ? 'a time' : value));
}

await show('xAdd', 'readings', '1518951480106-0', { 'sensor-id': '1234', temperature: '19.8' });
await show('xAdd', 'readings', '1518951482479-0', { 'sensor-id': '9999', temperature: '18.2' });
await show('xLen', 'readings');
await show('xAdd', 'lowest', '0-1', { field: 'value' });
await show('xAdd', 'lowest', '0-1', { foo: 'bar' });
await show('xAdd', 'lowest', '0-*', { baz: 'qux' });
await show('xRange', 'readings', '-', '+');
await show('xRange', 'readings', '1518951480106', '1518951480107');
await show('xRange', 'readings', '(1518951480106-0', '+', { COUNT: 2 });
await show('xRevRange', 'readings', '+', '-', { COUNT: 1 });
await show('xRead', [{ key: 'readings', id: '0' }, { key: 'lowest', id: '0' }], { COUNT: 2 });
await show('xRead', { key: 'readings', id: '$' }, { BLOCK: 5 });

const waiting = show('xRead', { key: 'readings', id: '1518951482479-0' }, { BLOCK: 60000 });
await other.xAdd('readings', '1518951482480-0', { late: 'yes' });
await waiting;

await show('xGroupCreate', 'fruit', 'mygroup', '$');
await show('xGroupCreate', 'fruit', 'mygroup', '$', { MKSTREAM: true });
await show('xGroupCreate', 'fruit', 'mygroup', '$');
for (const [ms, message] of ['apple', 'orange', 'strawberry', 'apricot', 'banana'].entries()) {
  await show('xAdd', 'fruit', `${ms + 1}-0`, { message });
}
const fresh = { key: 'fruit', id: '>' };
await show('xReadGroup', 'mygroup', 'Alice', fresh, { COUNT: 1 });
await show('xReadGroup', 'mygroup', 'Alice', { key: 'fruit', id: '0' });
await show('xAck', 'fruit', 'mygroup', '1-0');
await show('xReadGroup', 'mygroup', 'Alice', { key: 'fruit', id: '0' });
await show('xReadGroup', 'mygroup', 'Bob', fresh, { COUNT: 2 });
await show('xPending', 'fruit', 'mygroup');
await show('xPendingRange', 'fruit', 'mygroup', '-', '+', 10);
await show('xClaim', 'fruit', 'mygroup', 'Alice', 3600000, '2-0');
await show('xClaim', 'fruit', 'mygroup', 'Alice', 0, '2-0');
await show('xClaimJustId', 'fruit', 'mygroup', 'Lora', 0, ['2-0']);
await show('xAutoClaim', 'fruit', 'mygroup', 'Alice', 0, '0-0', { COUNT: 1 });
await show('xAutoClaimJustId', 'fruit', 'mygroup', 'Lora', 0, '0-0');
await show('xInfoGroups', 'fruit');
await show('xInfoConsumers', 'fruit', 'mygroup');
await show('xReadGroup', 'nosuch', 'Alice', fresh);
await show('xTrim', 'fruit', 'MAXLEN', 3);
await show('xDel', 'fruit', ['4-0', '9-0']);
await show('xRange', 'fruit', '-', '+');
await show('xGroupDelConsumer', 'fruit', 'mygroup', 'Bob');
await show('xGroupDestroy', 'fruit', 'mygroup');

const pair = client.multi().xAdd('capped', '1-0', { value: '1' }).xLen('capped');
console.log('multi', JSON.stringify(await pair.exec()));
await client.close();
await other.close();

// kafkajs's idempotent producer as a writer of the torture run (tests/torture/pacing.py says what that is).
const { Kafka, logLevel } = require(process.env.KAFKAJS || "kafkajs");

const [, , bootstrap, topic, ...numbers] = process.argv;
const [partitions, rate, deliveryMs] = numbers.map(Number);
const BURST_MS = 50;
let stopped = false;
let retries = 0;
process.stdin.resume();
process.stdin.on("end", () => { stopped = true; });

// a failed produce request is logged once per attempt, with its retryCount
const logCreator = () => ({ log }) => {
  if (log.retryCount !== undefined) retries += 1;
  console.error(JSON.stringify(log));
};
const kafka = new Kafka({
  clientId: "kafkajs",
  brokers: bootstrap.split(","),
  logLevel: logLevel.WARN,
  logCreator,
  connectionTimeout: 2000,
  requestTimeout: 2000,
  // at worst an attempt takes a request time-out and a pause
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: Math.max(5, Math.round(deliveryMs / 2500)) },
});

// After a connection that was cut in mid-frame kafkajs reads the next one's bytes as the frame's rest, and
// throws where no caller can catch it; the requests on it time out and are sent again.
process.on("uncaughtException", (error) => {
  retries += 1;
  console.error(error);
});

const tell = (line) => process.stdout.write(line.replaceAll("\n", " ") + "\n");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// kafkajs can lose a request: its response is one "without match", and the call never settles. What is not answered long
// after its retries are used up is given up here.
const LIMIT_MS = deliveryMs + 30_000;
async function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not return`)), LIMIT_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function main() {
  const perPartition = Math.max(1, Math.round((rate * BURST_MS) / 1000 / partitions));
  const all = Array.from({ length: partitions }, (_, partition) => write(partition, perPartition));
  const sent = (await Promise.all(all)).reduce((sum, count) => sum + count, 0);
  tell(`end ${sent} ${retries}`);
}

// A producer for each partition, and a new one after a send that was given up. kafkajs remembers what is
// acknowledged by broker: a send to several partitions with moving leaders is written again under new sequence
// numbers. And it gives the sequence numbers of a batch that it gave up to the next one: if the former was
// stored the latter is taken for its duplicate, and lost.
async function write(partition, perPartition) {
  let producer = newProducer();
  let number = 0;
  for (; !stopped; number += perPartition) {
    if (!(await send(producer, partition, number, perPartition))) {
      producer.disconnect().catch(console.error);
      producer = newProducer();
    }
    await sleep(BURST_MS);
  }
  await within(producer.disconnect(), "disconnect").catch(console.error);
  return number;
}

// kafkajs goes on with a connection on which a request timed out, without end if it is half open: close it. Its
// retries connect again; the producer's id and sequence numbers stay.
function newProducer() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 5, metadataMaxAge: 1000 });
  producer.on(producer.events.REQUEST_TIMEOUT, () => producer.disconnect().catch(console.error));
  return producer;
}

// kafkajs gives up on its first connection sooner than on any other
async function connect(producer) {
  for (;;) {
    try {
      return await producer.connect();
    } catch (error) {
      retries += 1;
      await sleep(200);
    }
  }
}

// Whether it was acknowledged.
async function send(producer, partition, first, count) {
  await connect(producer);
  const numbers = Array.from({ length: count }, (_, n) => first + n);
  const messages = numbers.map((n) => ({ partition, value: `kafkajs/${partition}/${n}` }));
  try {
    const [answer] = await within(producer.send({ topic, messages, acks: -1 }), "send");
    for (const n of numbers) tell(`ack ${partition} ${n} ${Number(answer.baseOffset) + n - first}`);
    return true;
  } catch (error) {
    for (const n of numbers) tell(`fail ${partition} ${n} ${error}`);
    return false;
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

// kafkajs's idempotent producer as a writer of the torture run (load/torture/pacing.py says what that is).
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
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: Math.max(5, Math.round(deliveryMs / 500)) },
});

// After a connection that was cut in mid-frame kafkajs reads the next one's bytes as the frame's rest, and
// throws where nobody can catch it; the requests on it time out and are sent again.
process.on("uncaughtException", (error) => {
  retries += 1;
  console.error(error);
});

const tell = (line) => process.stdout.write(line.replaceAll("\n", " ") + "\n");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function main() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 5, metadataMaxAge: 1000 });
  await connect(producer);
  const perPartition = Math.max(1, Math.round((rate * BURST_MS) / 1000 / partitions));
  const all = Array.from({ length: partitions }, (_, partition) => write(producer, partition, perPartition));
  const sent = (await Promise.all(all)).reduce((sum, count) => sum + count, 0);
  tell(`end ${sent} ${retries}`);
  await producer.disconnect();
}

// One partition per send: kafkajs remembers what is acknowledged by broker, so when a partition's leader
// moves before a retry it sends acknowledged records once more, under new sequence numbers.
async function write(producer, partition, perPartition) {
  let number = 0;
  for (; !stopped; number += perPartition) {
    await send(producer, partition, number, perPartition);
    await sleep(BURST_MS);
  }
  return number;
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

async function send(producer, partition, first, count) {
  const numbers = Array.from({ length: count }, (_, n) => first + n);
  const messages = numbers.map((n) => ({ partition, value: `kafkajs/${partition}/${n}` }));
  try {
    const [answer] = await producer.send({ topic, messages, acks: -1 });
    for (const n of numbers) tell(`ack ${partition} ${n} ${Number(answer.baseOffset) + n - first}`);
  } catch (error) {
    for (const n of numbers) tell(`fail ${partition} ${n} ${error}`);
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

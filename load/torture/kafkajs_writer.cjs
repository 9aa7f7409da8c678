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

const tell = (line) => process.stdout.write(line.replaceAll("\n", " ") + "\n");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function main() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 5, metadataMaxAge: 1000 });
  await connect(producer);
  const perPartition = Math.max(1, Math.round((rate * BURST_MS) / 1000 / partitions));
  let number = 0;
  while (!stopped) {
    const messages = [];
    for (let partition = 0; partition < partitions; partition++) {
      for (let n = number; n < number + perPartition; n++) {
        messages.push({ partition, value: `kafkajs/${partition}/${n}` });
      }
    }
    await send(producer, messages, number, perPartition);
    number += perPartition;
    await sleep(BURST_MS);
  }
  tell(`end ${number * partitions} ${retries}`);
  await producer.disconnect();
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

async function send(producer, messages, first, perPartition) {
  const open = new Set(Array.from({ length: partitions }, (_, partition) => partition));
  let reason = "no answer for this partition";
  try {
    for (const answer of await producer.send({ topic, messages, acks: -1 })) {
      open.delete(answer.partition);
      for (let n = 0; n < perPartition; n++) {
        tell(`ack ${answer.partition} ${first + n} ${Number(answer.baseOffset) + n}`);
      }
    }
  } catch (error) {
    reason = String(error);
  }
  for (const partition of open) {
    for (let n = 0; n < perPartition; n++) tell(`fail ${partition} ${first + n} ${reason}`);
  }
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

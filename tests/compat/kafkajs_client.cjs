// kafkajs as a command: `produce BOOTSTRAP TOPIC COUNT` or `consume BOOTSTRAP TOPIC COUNT`.
// Prints one JSON object: {"records": n, "values": [...]} (values only when consuming).
const { Kafka, logLevel, CompressionTypes } = require(process.env.KAFKAJS || "kafkajs");

const [, , mode, bootstrap, topic, countText] = process.argv;
const count = Number(countText);
const kafka = new Kafka({ clientId: "kafkajs", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });

async function produce() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 5 });
  await producer.connect();
  for (let start = 0; start < count; start += 1000) {
    const messages = [];
    for (let n = start; n < Math.min(start + 1000, count); n++) {
      messages.push({ key: `key-${n % 100}`, value: `kafkajs-${n}` });
    }
    await producer.send({ topic, messages, acks: -1, compression: CompressionTypes.GZIP });
  }
  await producer.disconnect();
  return { records: count };
}

async function consume() {
  const consumer = kafka.consumer({ groupId: `kafkajs-${topic}-${process.pid}`, sessionTimeout: 10000 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const values = [];
  await new Promise((resolve, reject) => {
    consumer.run({
      eachBatch: async ({ batch }) => {
        for (const message of batch.messages) values.push(message.value.toString());
        if (values.length >= count) resolve();
      },
    }).catch(reject);
  });
  await consumer.disconnect();
  return { records: values.length, values };
}

(mode === "produce" ? produce() : consume()).then(
  (result) => process.stdout.write(JSON.stringify(result), () => process.exit(0)),
  (error) => { console.error(error); process.exit(1); },
);

// Reads partition 0 from each of some offsets, up to the record just before an end: `BOOTSTRAP TOPIC 0,1,2 END`.
// Prints what ReadFrom.java prints. kafkajs has no position to ask for, so there must be a record at END - 1.
const { Kafka, logLevel } = require(process.env.KAFKAJS || "kafkajs");

const [, , bootstrap, topic, starts, endText] = process.argv;
const end = Number(endText);
const kafka = new Kafka({ clientId: "kafkajs", brokers: bootstrap.split(","), logLevel: logLevel.ERROR });

async function readFrom(start) {
  const consumer = kafka.consumer({ groupId: `read-from-${process.pid}-${start}`, maxWaitTimeInMs: 20 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const lines = [];
  await new Promise((resolve, reject) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        const value = message.value === null ? "null" : message.value.toString();
        lines.push(`${start} ${message.offset} ${message.key.toString()} ${value}`);
        if (Number(message.offset) === end - 1) resolve();
      },
    }).catch(reject);
    consumer.seek({ topic, partition: 0, offset: String(start) });
  });
  await consumer.disconnect();
  return [...lines, `${start} end`];
}

async function main() {
  for (const start of starts.split(",")) console.log((await readFrom(start)).join("\n"));
}

main().then(
  () => process.exit(0),
  (error) => { console.error(error); process.exit(1); },
);

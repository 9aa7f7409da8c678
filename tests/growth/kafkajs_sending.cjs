// kafkajs' producer for some seconds, with a line for each record: see tests/growth/doubling_producers.py.
// Arguments: bootstrap servers, topic, name, seconds, number of keys, metadata's longest age in ms.
const { Kafka, logLevel } = require(process.env.KAFKAJS || "kafkajs");

const [, , bootstrap, topic, name, seconds, keys, age] = process.argv;
const kafka = new Kafka({ clientId: name, brokers: bootstrap.split(","), logLevel: logLevel.NOTHING });

async function send() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, metadataMaxAge: Number(age) });
  await producer.connect();
  const until = Date.now() + 1000 * Number(seconds);
  for (let number = 0; Date.now() < until; number++) {
    const message = { key: `key-${Math.floor(Math.random() * Number(keys))}`, value: `${name}/${number}` };
    try {
      const [sent] = await producer.send({ topic, messages: [message], acks: -1 });
      console.log("ack", message.value, message.key, sent.partition);
    } catch (error) {
      console.log("fail", String(error.type || error.name));
    }
  }
  await producer.disconnect();
}

send().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });

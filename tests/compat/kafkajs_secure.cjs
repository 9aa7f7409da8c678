// Argument: JSON of {name: settings of a client}. With each it creates a topic, writes and reads 20 records in a group,
// and prints a line "NAME works", or "NAME" and the error. `token` in the settings is the token of OAUTHBEARER.
const { Kafka, logLevel } = require(process.env.KAFKAJS);
const fs = require("fs");
const RECORDS = 20;

function client({ bootstrap, ca, certificate, token, sasl }) {
  const ssl = { ca: [fs.readFileSync(ca)] };
  if (certificate) {
    ssl.cert = ssl.key = fs.readFileSync(certificate);
  }
  if (token) {
    sasl = { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: token }) };
  }
  return new Kafka({ brokers: [bootstrap], ssl, sasl, logLevel: logLevel.NOTHING, retry: { retries: 2 } });
}

async function writeAndRead(kafka, topic) {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 2 }], waitForLeaders: true });
  await admin.disconnect();
  const producer = kafka.producer();
  await producer.connect();
  const messages = [...Array(RECORDS).keys()].map((n) => ({ key: `${n}`, value: `${n}` }));
  await producer.send({ topic, messages });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: topic });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const values = new Set();
  await new Promise((resolve, reject) => {
    const eachMessage = async ({ message }) => {
      values.add(message.value.toString());
      if (values.size === RECORDS) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
}

(async () => {
  for (const [name, settings] of Object.entries(JSON.parse(process.argv[2]))) {
    try {
      await writeAndRead(client(settings), `kafkajs-${name}`);
      console.log(`${name} works`);
    } catch (error) {
      console.log(`${name} ${error.message}`);
    }
  }
  process.exit(0);
})();

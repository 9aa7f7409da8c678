// Sends that wait for each other, by kafkajs's producer: `node kafkajs_sends.cjs host:port topic sends records`.
// Prints the seconds that all sends took.
const { Kafka, logLevel } = require(process.env.KAFKAJS)

const [servers, topic, sends, records] = process.argv.slice(2)

async function work() {
  const producer = new Kafka({ brokers: servers.split(','), logLevel: logLevel.NOTHING }).producer()
  await producer.connect()
  const messages = Array.from({ length: Number(records) }, (_, n) => ({ key: `${n}`, value: 'x'.repeat(100) }))
  await producer.send({ topic, messages })
  const began = process.hrtime.bigint()
  for (let n = 0; n < Number(sends); n++) await producer.send({ topic, messages })
  console.log(Number(process.hrtime.bigint() - began) / 1e9)
  await producer.disconnect()
}

work().catch(error => {
  console.error(error)
  process.exit(1)
})

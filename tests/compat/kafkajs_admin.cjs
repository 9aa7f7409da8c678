// A topic's life through kafkajs's admin client: `node kafkajs_admin.cjs host:port`; what it saw as JSON on stdout.
const { Kafka, ConfigResourceTypes, logLevel } = require(process.env.KAFKAJS)

const admin = new Kafka({ brokers: process.argv[2].split(','), logLevel: logLevel.ERROR }).admin()
const topic = 'kafkajs'
const resource = { type: ConfigResourceTypes.TOPIC, name: topic }

async function work() {
  await admin.connect()
  const configEntries = [{ name: 'retention.ms', value: '5' }]
  await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 3, configEntries }] })
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  const changed = { ...resource, configEntries: [{ name: 'segment.ms', value: '7' }] }
  await admin.alterConfigs({ validateOnly: false, resources: [changed] })
  const described = await admin.describeConfigs({ includeSynonyms: true, resources: [resource] })
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
  await admin.deleteTopics({ topics: [topic] })
  await admin.disconnect()
  const own = described.resources[0].configEntries
    .filter(entry => entry.configSource === 1)
    .map(entry => [entry.configName, entry.configValue])
  console.log(JSON.stringify({ partitions: topics[0].partitions.length, replicas: topics[0].partitions[0].replicas.length, own }))
}

work().catch(error => {
  console.error(error)
  process.exit(1)
})

// kafkajs' admin creates, describes and deletes ACLs; prints what it saw as JSON.
const {
  Kafka, logLevel, AclResourceTypes, AclOperationTypes, AclPermissionTypes, ResourcePatternTypes,
} = require(process.env.KAFKAJS || "kafkajs");

const kafka = new Kafka({ clientId: "kafkajs", brokers: process.argv[2].split(","), logLevel: logLevel.ERROR });

async function run() {
  const admin = kafka.admin();
  await admin.connect();
  const acl = {
    resourceType: AclResourceTypes.TOPIC, resourceName: "kafkajs-", resourcePatternType: ResourcePatternTypes.PREFIXED,
    principal: "User:js", host: "*", operation: AclOperationTypes.WRITE, permissionType: AclPermissionTypes.DENY,
  };
  await admin.createAcls({ acl: [acl] });
  const filter = { ...acl, resourceName: "kafkajs-orders", resourcePatternType: ResourcePatternTypes.MATCH };
  const described = (await admin.describeAcls(filter)).resources;
  const deleted = (await admin.deleteAcls({ filters: [filter] })).filterResponses[0].matchingAcls;
  const left = (await admin.describeAcls(filter)).resources;
  await admin.disconnect();
  return { described, deleted, left };
}

run().then(
  (result) => process.stdout.write(JSON.stringify(result), () => process.exit(0)),
  (error) => { console.error(error); process.exit(1); },
);

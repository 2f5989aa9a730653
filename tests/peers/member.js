// A member of another client. Usage: node member.js CLIENT '{"group": ..., "topics": [...], ...}'
//
// Prints each message as a line of JSON: [topic, partition, offset]. SIGTERM: leave the group, then end.
"use strict";

const [client, options] = [process.argv[2], JSON.parse(process.argv[3])];
const got = (topic, partition, offset) =>
  process.stdout.write(JSON.stringify([topic, partition, Number(offset)]) + "\n");
const failed = (error) => process.stderr.write(`${error && error.stack ? error.stack : error}\n`);
const atEnd = (leave) => process.once("SIGTERM", () => leave(() => process.exit(0)));

function highLevelConsumer() {
  const kafka = require("kafka-node");
  const zookeeper = new kafka.Client(options.zookeeper, "kafka-node");
  const topics = options.topics.map((topic) => ({ topic }));
  const consumer = new kafka.HighLevelConsumer(zookeeper, topics, {
    groupId: options.group,
    autoCommitIntervalMs: 200,
  });
  consumer.on("message", (message) => got(message.topic, message.partition, message.offset));
  consumer.on("error", failed);
  atEnd((done) => consumer.close(true, done));
}

function consumerGroup() {
  const kafka = require("kafka-node-5");
  const consumer = new kafka.ConsumerGroup(
    {
      kafkaHost: options.bootstrap,
      groupId: options.group,
      protocol: ["range"],
      fromOffset: "earliest",
      autoCommitIntervalMs: 200,
      sessionTimeout: 10000,
    },
    options.topics
  );
  consumer.on("message", (message) => got(message.topic, message.partition, message.offset));
  consumer.on("error", failed);
  atEnd((done) => consumer.close(true, done));
}

async function kafkajs() {
  const { Kafka, logLevel } = require("kafkajs");
  const kafka = new Kafka({ brokers: [options.bootstrap], logLevel: logLevel.ERROR });
  const consumer = kafka.consumer({ groupId: options.group, sessionTimeout: 10000 });
  atEnd((done) => consumer.disconnect().then(done, done));
  await consumer.connect();
  await consumer.subscribe({ topics: options.topics, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ topic, partition, message }) => got(topic, partition, message.offset),
  });
}

({ highLevelConsumer, consumerGroup, kafkajs })[client]();

// sarama as a command: see package outcome. It has the classic protocol only.
package main

import (
	"context"
	"fmt"

	"github.com/IBM/sarama"

	"headrace.test/clients/outcome"
)

func main() { outcome.Main(produce, consume) }

func newConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_1_0_0
	return config
}

func produce(command outcome.Command) error {
	config := newConfig()
	config.Net.MaxOpenRequests = 1 // what the client demands of an idempotent producer
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Compression = sarama.CompressionGZIP
	config.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(command.Bootstrap, config)
	if err != nil {
		return err
	}
	messages := make([]*sarama.ProducerMessage, command.Count)
	for n := range messages {
		messages[n] = &sarama.ProducerMessage{
			Topic: command.Topic,
			Key:   sarama.StringEncoder(fmt.Sprintf("key-%d", n%100)),
			Value: sarama.StringEncoder(fmt.Sprintf("sarama-%d", n)),
		}
	}
	if err := producer.SendMessages(messages); err != nil {
		return err
	}
	return producer.Close()
}

func consume(command outcome.Command) ([]outcome.Member, error) {
	if command.Protocol != "classic" {
		return nil, fmt.Errorf("sarama has no protocol %q", command.Protocol)
	}
	group := outcome.NewGroup(command)
	failures := make(chan error, command.Members)
	for number := range command.Members {
		go func() { failures <- read(command, group, number) }()
	}
	for range command.Members {
		if err := <-failures; err != nil {
			return nil, err
		}
	}
	return group.Members(), nil
}

func read(command outcome.Command, group *outcome.Group, number int) error {
	config := newConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	client, err := sarama.NewConsumerGroup(command.Bootstrap, command.Group, config)
	if err != nil {
		return err
	}
	for {
		// returns at each rebalance
		if err := client.Consume(context.Background(), []string{command.Topic}, handler{command, group, number}); err != nil {
			return err
		}
		select {
		case <-group.Done:
			return client.Close()
		default:
		}
	}
}

type handler struct {
	command outcome.Command
	group   *outcome.Group
	number  int
}

func (h handler) Setup(session sarama.ConsumerGroupSession) error {
	h.group.Owns(h.number, session.Claims()[h.command.Topic])
	return nil
}

// Cleanup commits what the session has read, when all its claims have ended.
func (h handler) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	select {
	case <-h.group.Ready:
	case <-session.Context().Done():
		return nil
	}
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			h.group.Read(h.number, message.Value)
			session.MarkMessage(message, "")
		case <-h.group.Done:
			return nil
		}
	}
}

// franz-go as a command: see package outcome. Protocols: classic, and consumer (KIP-848).
package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"headrace.test/clients/outcome"
)

func main() { outcome.Main(produce, consume) }

// Idempotent, as is the client's default.
func produce(command outcome.Command) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(command.Bootstrap...),
		kgo.DefaultProduceTopic(command.Topic),
		kgo.ProducerBatchCompression(kgo.GzipCompression()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var lock sync.Mutex
	var failure error
	for n := range command.Count {
		record := kgo.Record{Key: fmt.Appendf(nil, "key-%d", n%100), Value: fmt.Appendf(nil, "franz_go-%d", n)}
		client.Produce(context.Background(), &record, func(_ *kgo.Record, err error) {
			if err != nil {
				lock.Lock()
				defer lock.Unlock()
				failure = err
			}
		})
	}
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	lock.Lock()
	defer lock.Unlock()
	return failure
}

func consume(command outcome.Command) ([]outcome.Member, error) {
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

// owned is what one member has; franz-go tells the changes.
type owned struct {
	lock       sync.Mutex
	partitions map[int32]bool
}

func (o *owned) change(changed []int32, has bool) []int32 {
	o.lock.Lock()
	defer o.lock.Unlock()
	for _, partition := range changed {
		if has {
			o.partitions[partition] = true
		} else {
			delete(o.partitions, partition)
		}
	}
	return slices.Sorted(maps.Keys(o.partitions))
}

func read(command outcome.Command, group *outcome.Group, number int) error {
	has := owned{partitions: map[int32]bool{}}
	given := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		group.Owns(number, has.change(topics[command.Topic], true))
	}
	taken := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		select {
		case <-group.Done: // it leaves
		default:
			group.Owns(number, has.change(topics[command.Topic], false))
		}
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(command.Bootstrap...),
		kgo.ConsumerGroup(command.Group),
		kgo.ConsumeTopics(command.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(given),
		kgo.OnPartitionsRevoked(taken),
		kgo.OnPartitionsLost(taken),
	}
	if command.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	<-group.Ready
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-group.Done; cancel() }()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(record *kgo.Record) { group.Read(number, record.Value) })
	}
	return client.CommitUncommittedOffsets(context.Background())
}

// franz-go's producer for some seconds, with a line for each record: see tests/growth/doubling_producers.py.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// leastAge is above franz-go's default of the least age, 5 s: it asks no sooner again, also after an error.
const leastAge = 6 * time.Second

func main() {
	if err := send(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// send takes: bootstrap servers, topic, name, seconds, number of keys, metadata's longest age in ms.
func send(arguments []string) error {
	if len(arguments) != 6 {
		return fmt.Errorf("wrong arguments: %q", arguments)
	}
	seconds, err := strconv.ParseFloat(arguments[3], 64)
	if err != nil {
		return err
	}
	keys, err := strconv.Atoi(arguments[4])
	if err != nil {
		return err
	}
	age, err := strconv.Atoi(arguments[5])
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(arguments[0], ",")...),
		kgo.DefaultProduceTopic(arguments[1]),
		kgo.MetadataMaxAge(max(time.Duration(age)*time.Millisecond, leastAge)),
		kgo.ProducerLinger(5*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var lock sync.Mutex
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for number := 0; time.Now().Before(until); number++ {
		value := fmt.Sprintf("%s/%d", arguments[2], number)
		record := kgo.Record{Key: fmt.Appendf(nil, "key-%d", rand.Intn(keys)), Value: []byte(value)}
		client.Produce(context.Background(), &record, func(sent *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				fmt.Println("fail", strings.ReplaceAll(err.Error(), " ", "_"))
			} else {
				fmt.Println("ack", value, string(sent.Key), sent.Partition)
			}
		})
		time.Sleep(4 * time.Millisecond)
	}
	return client.Flush(context.Background())
}

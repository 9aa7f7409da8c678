// Package outcome holds what both clients share: their command line, and the JSON that they print.
//
//	produce BOOTSTRAP TOPIC COUNT
//	consume BOOTSTRAP TOPIC COUNT PARTITIONS GROUP PROTOCOL MEMBERS
//
// Members of a group start to read when each of them has partitions, and all together have PARTITIONS; 0 asks for no
// certain number.
package outcome

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Patience is how long one command may take.
const Patience = 120 * time.Second

// Command is the parsed command line.
type Command struct {
	Bootstrap                  []string
	Topic, Group, Protocol     string
	Count, Partitions, Members int
}

// Member is what one member of the group did.
type Member struct {
	Partitions []int32  `json:"partitions"`
	Values     []string `json:"values"`
}

// Group collects what its members are given and what they read.
type Group struct {
	// Ready is closed when the group is complete, Done when all was read.
	Ready, Done chan struct{}
	command     Command
	lock        sync.Mutex
	members     []Member
}

// NewGroup returns a group whose members have nothing yet.
func NewGroup(command Command) *Group {
	members := make([]Member, command.Members)
	return &Group{Ready: make(chan struct{}), Done: make(chan struct{}), command: command, members: members}
}

// Owns replaces what the member has, and opens Ready when the group is complete.
func (g *Group) Owns(member int, partitions []int32) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.members[member].Partitions = append([]int32{}, partitions...)
	owned, different := 0, map[int32]bool{}
	for _, each := range g.members {
		if len(each.Partitions) == 0 {
			return
		}
		owned += len(each.Partitions)
		for _, partition := range each.Partitions {
			different[partition] = true
		}
	}
	if g.command.Partitions == 0 || owned == g.command.Partitions && len(different) == owned {
		closeOnce(g.Ready)
	}
}

// Read notes a value, and closes Done at the last one.
func (g *Group) Read(member int, value []byte) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.members[member].Values = append(g.members[member].Values, string(value))
	read := 0
	for _, each := range g.members {
		read += len(each.Values)
	}
	if read >= g.command.Count {
		closeOnce(g.Done)
	}
}

// Members is what to print.
func (g *Group) Members() []Member {
	g.lock.Lock()
	defer g.lock.Unlock()
	return append([]Member{}, g.members...)
}

func closeOnce(channel chan struct{}) {
	select {
	case <-channel:
	default:
		close(channel)
	}
}

// Main runs the command that the process was started with. Any failure ends the process with status 1.
func Main(produce func(Command) error, consume func(Command) ([]Member, error)) {
	time.AfterFunc(Patience, func() { fail(fmt.Errorf("not finished after %s", Patience)) })
	arguments := os.Args[1:]
	if len(arguments) < 4 {
		fail(fmt.Errorf("usage: produce BOOTSTRAP TOPIC COUNT, or consume ... PARTITIONS GROUP PROTOCOL MEMBERS"))
	}
	command := Command{Bootstrap: strings.Split(arguments[1], ","), Topic: arguments[2], Count: number(arguments[3])}
	if arguments[0] == "produce" && len(arguments) == 4 {
		if err := produce(command); err != nil {
			fail(err)
		}
		show(map[string]any{"records": command.Count})
		return
	}
	if arguments[0] != "consume" || len(arguments) != 8 {
		fail(fmt.Errorf("unknown command: %v", arguments))
	}
	command.Partitions, command.Members = number(arguments[4]), number(arguments[7])
	command.Group, command.Protocol = arguments[5], arguments[6]
	members, err := consume(command)
	if err != nil {
		fail(err)
	}
	show(map[string]any{"members": members})
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	if err != nil {
		fail(err)
	}
	return found
}

func show(found any) {
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

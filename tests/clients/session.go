// A session with go-redis and redigo, as Debian packages them: what each reply is, one per line.
//
//	session SOCKET
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/gomodule/redigo/redis"
	goredis "gopkg.in/redis.v5"
)

// Texts instead of bytes, so that JSON shows them.
func shown(value interface{}) interface{} {
	switch one := value.(type) {
	case []byte:
		return string(one)
	case redis.Error:
		return "error: " + string(one)
	case []interface{}:
		found := make([]interface{}, len(one))
		for place, part := range one {
			found[place] = shown(part)
		}
		return found
	}
	return value
}

func show(value interface{}, err error) {
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	text, err := json.Marshal(shown(value))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

var commands = [][]interface{}{
	{"PING"},
	{"XADD", "race:france", "1-0", "rider", "Castilla", "speed", 30.2, "position", 1},
	{"XADD", "race:france", "2-0", "rider", "Norem", "speed", 28.8, "position", 3},
	{"XADD", "race:france", "1-0", "rider", "Prickett"},
	{"XLEN", "race:france"},
	{"XRANGE", "race:france", "-", "+", "COUNT", 1},
	{"XREVRANGE", "race:france", "+", "-"},
	{"XREAD", "COUNT", 10, "STREAMS", "race:france", "race:italy", 0, 0},
	{"XREAD", "BLOCK", 1, "STREAMS", "race:france", "$"},
	{"XGROUP", "CREATE", "race:france", "riders", 0},
	{"XGROUP", "CREATE", "race:france", "riders", 0},
	{"XREADGROUP", "GROUP", "riders", "ann", "COUNT", 1, "STREAMS", "race:france", ">"},
	{"XPENDING", "race:france", "riders"},
	{"XCLAIM", "race:france", "riders", "bob", 0, "1-0", "JUSTID"},
	{"XACK", "race:france", "riders", "1-0", "2-0"},
	{"XAUTOCLAIM", "race:france", "riders", "bob", 0, 0},
	{"XDEL", "race:france", "2-0"},
	{"XTRIM", "race:france", "MAXLEN", 0},
	{"XINFO", "GROUPS", "missing"},
	{"SET", "lock", "me", "NX", "PX", 30000},
	{"SET", "lock", "you", "NX", "PX", 30000},
	{"GET", "lock"},
	{"DEL", "lock", "race:france"},
	{"TYPE", "race:france"},
}

func main() {
	path := os.Args[1]
	client := goredis.NewClient(&goredis.Options{Network: "unix", Addr: path})
	for _, words := range commands {
		one := goredis.NewCmd(words...)
		client.Process(one)
		show(one.Result())
	}
	replies, err := client.TxPipelined(func(pipe *goredis.Pipeline) error {
		pipe.Process(goredis.NewStringCmd("XADD", "tx", "1-0", "a", "1"))
		pipe.Process(goredis.NewIntCmd("XLEN", "tx"))
		pipe.Del("tx")
		return nil
	})
	for _, one := range replies {
		fmt.Println(one)
	}
	fmt.Println(err, client.Close())

	connection, err := redis.Dial("unix", path)
	if err != nil {
		panic(err)
	}
	for _, words := range commands {
		show(connection.Do(words[0].(string), words[1:]...))
	}
	connection.Send("MULTI")
	connection.Send("XADD", "tx", "1-0", "a", "1")
	connection.Send("DEL", "tx")
	show(connection.Do("EXEC"))
	fmt.Println(connection.Close())
}

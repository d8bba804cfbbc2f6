// etcd's program, built from the modules that go.mod pins. etcd's own main package cannot be built
// by its version, because the go.mod of its module replaces other modules by local paths.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}

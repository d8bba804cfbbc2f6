// etcd, built from the modules that go.mod pins. etcd's own main package is in a module that
// replaces others by paths, which a module that is fetched by its version cannot do.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}

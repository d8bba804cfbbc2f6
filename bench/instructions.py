#!/usr/bin/env python3
"""Counts the instructions that a node executes per request, under valgrind's callgrind.

    cargo build --release --locked -p kvorum
    bench/instructions.py [--nodes 1|3] [--requests 3000] [--by-crate]     prints the counts
    bench/instructions.py --check                                          fails if a count grew
    bench/instructions.py --write                                          stores the counts
    bench/instructions.py --profile dev …                                  counts the tests' binary

One client on one keep-alive connection sends GETs and PUTs of 64-byte values under 3,000 keys, with
--sync interval. Only the node with this connection is counted, and only its user-space code, not
the kernel. The other two of three nodes answer that node's requests. A count varies by 0.3 % from
run to run, even on a busy machine, on which CPU time varies far more. The effects of CPU caches,
and of batches of several requests, show only in CPU time (bench/http.sh).

bench/instructions.json has the counts of the last commit that lowered them, by profile, number of
nodes and method. --check allows a count to exceed the stored one by the share in TOLERANCES, which
is noise. `.ci/run` checks the binary that the tests have built, because a release build takes
minutes. The counts of that binary are larger than a release build's, and grow by the same changes
of the code. Needs valgrind. If counting is impossible, --check prints the reason and succeeds."""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNTS_FILE = ROOT / "bench" / "instructions.json"
# Share by which a count may exceed the stored one, by profile and number of nodes. A smaller excess
# is noise: on a slower machine, nodes under valgrind poll more often without finding an event.
# Three nodes do so more often than one, because they wait for each other.
TOLERANCES = {"release": {1: 0.005, 3: 0.03}, "dev": {1: 0.05, 3: 0.25}}
BINARIES = {"release": "target/release/kvorum", "dev": "target/debug/kvorum"}
KEYS = 3_000
VALUE = b"v" * 64
# Time limit in seconds of each step under callgrind: until a node serves, a command of
# callgrind_control, and until callgrind has written its counts.
TIMEOUT = 120


class Uncounted(Exception):
    """Counting is impossible, for the reason in the message."""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """Running nodes. The first runs under callgrind, which counts only while `count` runs."""

    def __init__(self, binary, nodes):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="kvorum-instructions-"))
        self.ports = free_ports(nodes)
        urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        listed = ",".join(f"n{n}={url}" for n, url in enumerate(urls))
        self.processes = []
        for n, port in enumerate(self.ports):
            command = [binary, "serve", "--listen", f"127.0.0.1:{port}", "--data",
                       str(self.dir / f"n{n}"), "--sync", "interval", "--log", "error"]
            # A node under callgrind is slow: with the default deadline, requests would time out.
            command += ["--deadline", "10s"] + (["--cluster", listed] if nodes > 1 else [])
            if n == 0:
                counts = f"--callgrind-out-file={self.dir}/counts"
                command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", counts] + command
            log = open(self.dir / f"log{n}", "w")
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        self.client = None

    def connect(self):
        end = time.time() + TIMEOUT
        while time.time() < end and all(one.poll() is None for one in self.processes):
            try:
                client = socket.create_connection(("127.0.0.1", self.ports[0]), TIMEOUT)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                if self.response(client) == b"200":
                    return client
                client.close()
            except OSError:
                pass
            time.sleep(0.2)
        raise Uncounted("a node does not serve:\n" + (self.dir / "log0").read_text()[-2000:])

    @staticmethod
    def response(client):
        """Reads one response, and returns its status."""
        read = b""
        while b"\r\n\r\n" not in read:
            piece = client.recv(65536)
            if not piece:
                raise OSError("the connection was closed")
            read += piece
        head, _, body = read.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        while len(body) < (int(length[1]) if length else 0):
            body += client.recv(65536)
        return head.split()[1]

    def request(self, method, number):
        body = VALUE if method == "PUT" else b""
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        target = f"/v0/entity?id=key{number % KEYS:06}"
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n"
        self.client.sendall(head.encode() + body)
        status = self.response(self.client)
        if status not in (b"200", b"201"):
            raise Uncounted(f"{method} {target}: {status.decode()}")

    def control(self, *what):
        process = str(self.processes[0].pid)
        command = ["callgrind_control", *what, process]
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT)
        except (OSError, subprocess.SubprocessError) as why:
            raise Uncounted(f"callgrind can't be told: {why}") from why

    def count(self, method, requests):
        """Returns the instructions per request, and the path of the counts by function."""
        for number in range(KEYS):
            self.request(method, number)
        self.control("-i", "on")
        for number in range(requests):
            self.request(method, number)
        self.control("-d", method)
        self.control("-i", "off")
        mark = f"Trigger: dump {method}"
        end = time.time() + TIMEOUT
        while time.time() < end:
            for path in self.dir.glob("counts*"):
                text = path.read_text(errors="replace")
                total = re.search(r"^totals: (\d+)", text, re.M)
                if mark in text and total:
                    return round(int(total[1]) / requests), path
            time.sleep(0.2)
        raise Uncounted("callgrind wrote no counts")

    def stop(self):
        for one in self.processes:
            one.send_signal(signal.SIGTERM)
        for one in self.processes:
            one.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def by_crate(path, requests):
    """Prints the instructions per request of the 20 crates that execute the most."""
    annotate = ["callgrind_annotate", "--threshold=100", "--show-percs=no", str(path)]
    text = subprocess.run(annotate, capture_output=True, text=True, check=True).stdout
    spent = collections.Counter()
    for count, file in re.findall(r"^\s*([\d,]+)\s+(\S+?):", text, re.M):
        crate = re.search(r"registry/src/[^/]+/([\w-]+?)-\d", file)
        own = re.search(r"/((?:crates/)?\w+/src|src)/", file)
        name = crate[1] if crate else own[1] if own else "std" if "/rustc/" in file else "libc"
        spent[name] += int(count.replace(",", ""))
    for name, count in spent.most_common(20):
        print(f"{count / requests:10.0f}  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--profile", choices=sorted(BINARIES), default="release")
    parser.add_argument("--binary", help="instead of the profile's")
    parser.add_argument("--nodes", type=int, choices=(1, 3))
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--by-crate", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("instructions are not counted: valgrind is missing")
        return
    all_kept = json.loads(COUNTS_FILE.read_text()) if COUNTS_FILE.exists() else {}
    kept = all_kept.setdefault(args.profile, {})
    binary = os.path.abspath(args.binary or ROOT / BINARIES[args.profile])
    grown = []
    for nodes in [args.nodes] if args.nodes else [1, 3]:
        cluster = Cluster(binary, nodes)
        try:
            cluster.client = cluster.connect()
            for method in ("PUT", "GET"):
                count, path = cluster.count(method, args.requests)
                before = kept.get(str(nodes), {}).get(method)
                ratio = f", {count / before:.3f} of the kept {before}" if before else ""
                print(f"{nodes} node{'s' if nodes > 1 else ''}: {method} {count}{ratio}", flush=True)
                if args.by_crate:
                    by_crate(path, args.requests)
                if before and count > before * (1 + TOLERANCES[args.profile][nodes]):
                    grown.append(f"{method} on {nodes}: {before} to {count}")
                kept.setdefault(str(nodes), {})[method] = count
        except (Uncounted, OSError) as why:
            if not args.check:
                sys.exit(str(why))
            print(f"instructions are not counted: {why}")
            break
        finally:
            cluster.stop()
    if args.write:
        COUNTS_FILE.write_text(json.dumps(all_kept, indent=2, sort_keys=True) + "\n")
    if args.check and grown:
        sys.exit("instructions per request have grown: " + "; ".join(grown))


if __name__ == "__main__":
    main()

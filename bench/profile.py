#!/usr/bin/env python3
"""Measures what the observation of a node costs the node.

    bench/profile.py [--rounds 5] [--window 3]

One node runs on CPU 0, and one load run on CPU 1, for PUT and for GET, in a closed loop and at a
fixed rate (about 70 % of the breaking point that `kvorum bench search` finds). During the load run,
windows without observation alternate with windows of one kind of observation: a recording of each
event, a recording of all four, a scrape of /metrics each second, an open dashboard. A machine that
slows down slows a window and its neighbours, so that each figure is a ratio to the two neighbouring
windows without observation: median (least - greatest). The cost of a recording after its end (names
for addresses) falls into the gap after its window, and is reported separately, in CPU seconds per
recording.

Needs Linux, two CPUs, and Python 3.9 without packages. Raw figures go to --out.
"""

import argparse
import base64
import csv
import glob
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib

OBSERVATIONS = {
    "cpu": "cpu",
    "alloc": "alloc",
    "lock": "lock",
    "wall": "wall",
    "all four": "cpu,alloc,lock,wall",
    "scrapes": None,
    "dashboard": None,
}
# Seconds between two windows, in which the node resolves the addresses of a recording to names.
GAP = 1.5
# Seconds from the start of a load run to its first window.
LEAD = 3.0


class Node:
    def __init__(self, kvorum, data):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:%d" % probe.getsockname()[1]
        self.url = "http://" + self.address
        self.process = subprocess.Popen(
            ["taskset", "-c", "0", kvorum, "serve", "--listen", self.address, "--data", data,
             "--loops", "1", "--sync", "interval"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                self.get("/readyz")
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("profile.py: the node does not get ready")

    def get(self, path, timeout=60):
        with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
            return answer.read().decode()

    def cpu(self):
        """Returns the CPU time of all threads so far in seconds, as the scheduler counts it."""
        nanos = 0
        for path in glob.glob("/proc/%d/task/*/schedstat" % self.process.pid):
            try:
                nanos += int(open(path).read().split()[0])
            except OSError:
                pass  # The thread has ended.
        return nanos / 1e9

    def requests(self):
        lines = self.get("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.startswith("kvorum_request_duration_seconds_count"))


class Observation:
    """An observation of the node beside the load, on a thread that `end` joins."""

    def __init__(self, node, what, seconds):
        self.node, self.over = node, threading.Event()
        action = {"scrapes": self.scrape, "dashboard": self.watch}.get(what)
        if action is None:
            path = "/admin/profile?event=%s&seconds=%d&format=json" % (OBSERVATIONS[what], seconds)
            action = lambda: node.get(path)
        self.failed = None
        self.thread = threading.Thread(target=self.do, args=(action,))
        self.thread.start()

    def do(self, action):
        try:
            action()
        except OSError as error:
            self.failed = error

    def scrape(self):
        while not self.over.wait(1.0):
            self.node.get("/metrics")

    def watch(self):
        with urllib.request.urlopen(self.node.url + "/ui/events", timeout=60) as events:
            while not self.over.is_set() and events.readline():
                pass

    def end(self):
        self.over.set()
        self.thread.join()
        if self.failed:
            raise SystemExit("profile.py: beside the load: %s" % self.failed)


def window(node, seconds):
    """Sleeps for `seconds`. Returns the node's CPU seconds and requests, and the start and end."""
    begun, cpu, requests = time.time(), node.cpu(), node.requests()
    time.sleep(seconds)
    requests, cpu = node.requests() - requests, node.cpu() - cpu
    return {"cpu": cpu, "requests": requests, "from": begun, "to": time.time()}


def counts(line):
    """Decodes a line of an HdrHistogram log, which has the compressed V2 encoding.

    Returns a pair for each value that occurs: the value in nanoseconds, and its count."""
    packed = base64.b64decode(line.rsplit(",", 1)[1])
    data = zlib.decompress(packed[8:])[40:]
    at, index, found = 0, 0, []
    while at < len(data):
        number, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & (0x7F if shift < 56 else 0xFF)) << shift
            shift += 7
            if byte < 0x80 or shift > 56:
                break
        number = (number >> 1) ^ -(number & 1)
        if number < 0:
            index -= number
            continue
        if number:
            # The first 2,048 buckets have a width of 1 (3 significant digits). Each further 1,024
            # buckets have twice the width of those before.
            half = index // 1024 - 1
            value = index if half <= 0 else (index % 1024 + 1024) << half
            found.append((value, number))
        index += 1
    return found


def tail(log, start, end):
    """Returns the p99.9 in ms over the log's intervals between `start` and `end`, or None if the
    log has no interval there."""
    zero, total = 0.0, {}
    for line in open(log):
        if line.startswith("#[StartTime:"):
            zero = float(line.split()[1])
        if not line.startswith("Tag="):
            continue
        begun = zero + float(line.split(",")[1])
        if begun >= start and begun + float(line.split(",")[2]) <= end:
            for value, count in counts(line):
                total[value] = total.get(value, 0) + count
    left = sum(total.values()) * 0.001
    for value in sorted(total, reverse=True):
        left -= total[value]
        if left < 0:
            return value / 1e6
    return None


def measure(args, node, method, rate, work):
    """Makes one load run. Returns the figures of its windows, each with the observation's name."""
    order = []
    for _ in range(args.rounds):
        for what in OBSERVATIONS:
            order += ["nothing", what]
    order.append("nothing")
    length = LEAD + len(order) * (args.window + GAP + 2)
    out = os.path.join(work, "run")
    command = ["taskset", "-c", "1", args.kvorum, "bench", "load", "-t1", "-c32",
               "-d%ds" % (length + 5), "--warmup", "0", "--mix", method + "=100", "--keys", "uniform",
               "--key-count", "100k", "--out", out] + (["-R", str(rate)] if rate else ["--closed"])
    subprocess.run(["rm", "-rf", out])
    load = subprocess.Popen(command + [node.url], stdout=subprocess.DEVNULL)
    time.sleep(LEAD)
    windows = []
    for what in order:
        sys.stderr.write("%s %s: %s\n" % (method, rate or "closed", what))
        # A recording lasts longer than its window, so that it covers all of the window.
        beside = None if what == "nothing" else Observation(node, what, args.window + 1)
        time.sleep(0.2)
        windows.append(dict(window(node, args.window), what=what))
        cpu = node.cpu()
        if beside:
            beside.end()
        time.sleep(GAP)
        windows[-1]["after"] = node.cpu() - cpu
        if load.poll() is not None:
            raise SystemExit("profile.py: the load ended early: " + " ".join(command))
    load.send_signal(2)
    load.wait()
    for one in windows:
        one["tail"] = tail(os.path.join(out, "intended.hdr"), one["from"], one["to"])
    return windows


def around(windows, place, figure):
    return statistics.mean(figure(windows[at]) for at in (place - 1, place + 1))


def ratios(windows, what, figure):
    return sorted(figure(one) / around(windows, place, figure)
                  for place, one in enumerate(windows) if one["what"] == what)


def shown(values):
    return "%.3f (%.2f–%.2f)" % (statistics.median(values), values[0], values[-1])


def rate_of(one):
    return one["requests"] / (one["to"] - one["from"])


def cpu_of(one):
    return one["cpu"] / one["requests"] * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvorum", default="target/release/kvorum", help="the binary, with kvorum-bench beside it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=int, default=3, help="seconds, 2 or more")
    parser.add_argument("--put-rate", type=int, default=68000, help="PUTs a second")
    parser.add_argument("--get-rate", type=int, default=90000, help="GETs a second")
    parser.add_argument("--out", default="target/profile.csv", help="raw figures")
    args = parser.parse_args()
    if not os.access(args.kvorum, os.X_OK):
        parser.error(args.kvorum + " is no program: cargo build --release makes it")
    raw = csv.writer(open(args.out, "w"))
    raw.writerow(["method", "pace", "beside", "requests_per_s", "cpu_us_per_request", "p999_ms",
                  "cpu_s_after"])
    print("| | beside | throughput, closed loop | CPU a request, closed loop | CPU a request, "
          "at the rate | p99.9 at the rate |\n|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as work:
        node = Node(args.kvorum, os.path.join(work, "data"))
        try:
            fill = [args.kvorum, "bench", "load", "-t1", "-c32", "-R20k", "-d6s", "--warmup", "0",
                    "--mix", "put=100", "--keys", "seq", "--key-count", "100k", "--out",
                    os.path.join(work, "fill"), node.url]
            subprocess.run(fill, stdout=subprocess.DEVNULL, check=True)
            for method, rate in (("put", args.put_rate), ("get", args.get_rate)):
                closed = measure(args, node, method, None, work)
                paced = measure(args, node, method, rate, work)
                for pace, windows in (("closed", closed), (rate, paced)):
                    for one in windows:
                        raw.writerow([method, pace, one["what"], "%.0f" % rate_of(one),
                                      "%.3f" % cpu_of(one), one["tail"], "%.3f" % one["after"]])
                table(method, closed, paced)
        finally:
            node.process.terminate()
            node.process.wait()


def table(method, closed, paced):
    plain = [one for one in closed if one["what"] == "nothing"]
    quiet = [one for one in paced if one["what"] == "nothing"]
    middle = lambda windows, figure: statistics.median(figure(one) for one in windows)
    print("| %s | nothing | %.0f/s | %.2f µs | %.2f µs | %.2f ms |" % (
        method.upper(), middle(plain, rate_of), middle(plain, cpu_of), middle(quiet, cpu_of),
        middle(quiet, lambda one: one["tail"])))
    for what in OBSERVATIONS:
        print("| %s | %s | %s | %s | %s | %s |" % (
            method.upper(), what, shown(ratios(closed, what, rate_of)),
            shown(ratios(closed, what, cpu_of)), shown(ratios(paced, what, cpu_of)),
            shown(ratios(paced, what, lambda one: one["tail"]))))
    # Ratios between windows without observation show the noise of the method.
    again = [dict(one, what="again" if place % 2 else "nothing")
             for place, one in enumerate(plain)]
    idle = [dict(one, what="again" if place % 2 else "nothing")
            for place, one in enumerate(quiet)]
    again, idle = again[:len(again) - 1 + len(again) % 2], idle[:len(idle) - 1 + len(idle) % 2]
    print("| %s | nothing, for the noise | %s | %s | %s | %s |" % (
        method.upper(), shown(ratios(again, "again", rate_of)),
        shown(ratios(again, "again", cpu_of)), shown(ratios(idle, "again", cpu_of)),
        shown(ratios(idle, "again", lambda one: one["tail"]))))
    names = [one["after"] - around(closed, place, lambda one: one["after"])
             for place, one in enumerate(closed) if one["what"] in OBSERVATIONS]
    print("<!-- CPU after a window, beyond its neighbours: median %.2f s -->" %
          statistics.median(names))
    sys.stdout.flush()


main()

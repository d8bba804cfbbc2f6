// A cluster of real processes on free ports. Its data directories are removed when it stops.
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { binary } = require('./kvorum');

/** Time limit of any wait before a test fails, in milliseconds. */
const TIMEOUT_MS = 30_000;

/** Returns distinct free ports. Keeps each port open until all ports are known. */
async function ports(count) {
  const held = await Promise.all(Array.from({ length: count }, () => new Promise((done) => {
    const server = net.createServer().listen(0, '127.0.0.1', () => done(server));
  })));
  const found = held.map((server) => server.address().port);
  await Promise.all(held.map((server) => new Promise((done) => server.close(done))));
  return found;
}

function environment() {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith('KVORUM'));
  return Object.fromEntries(kept);
}

/** Starts a node and waits until its stdout contains `what`; returns its process. */
async function startNode(args, what) {
  const child = spawn(binary, args, { stdio: ['ignore', 'pipe', 'inherit'], env: environment() });
  await new Promise((done, failed) => {
    let text = '';
    child.stdout.on('data', (piece) => {
      text += piece;
      if (text.includes(what)) done();
    });
    child.on('exit', () => failed(new Error(`a node did not start: ${text}`)));
  });
  return child;
}

class Cluster {
  static async start(count, args = []) {
    const cluster = new this();
    cluster.data = fs.mkdtempSync(path.join(os.tmpdir(), 'kvorum-browser-'));
    cluster.args = args;
    cluster.urls = (await ports(count)).map((port) => `http://127.0.0.1:${port}`);
    cluster.list = cluster.urls.map((url, n) => `${cluster.name(n)}=${url}`).join(',');
    cluster.nodes = [];
    for (let node = 0; node < count; node += 1) await cluster.up(node);
    return cluster;
  }

  name(node) {
    return `node-${node + 1}`;
  }

  /** Starts a node and waits until it serves. */
  async up(node) {
    const listen = this.urls[node].replace('http://', '');
    const args = ['serve', '--listen', listen, '--cluster', this.list, '--memory', '64MiB',
      '--log', 'error', '--data', path.join(this.data, this.name(node)), ...this.args];
    this.nodes[node] = await startNode(args, 'listening on');
  }

  /** Starts one more node, and waits until it asks to join; returns its number. */
  async join(args = []) {
    const [port] = await ports(1);
    const node = this.urls.length;
    this.urls.push(`http://127.0.0.1:${port}`);
    this.nodes[node] = await startNode(['serve', '--listen', `127.0.0.1:${port}`, '--join',
      this.urls[0], '--name', this.name(node), '--memory', '64MiB', '--log', 'error', '--data',
      path.join(this.data, this.name(node)), ...args, ...this.args], 'waits for a place');
    return node;
  }

  /** Kills a node and waits until its process has ended. */
  async kill(node) {
    const child = this.nodes[node];
    const gone = new Promise((done) => child.on('exit', done));
    child.kill('SIGKILL');
    await gone;
  }

  /** Sends a request to a node; returns status and body of the answer. */
  ask(node, method, target, body = '') {
    return new Promise((done, failed) => {
      const asked = http.request(this.urls[node] + target, { method, timeout: TIMEOUT_MS }, (got) => {
        let text = '';
        got.setEncoding('utf8').on('data', (piece) => { text += piece; });
        got.on('end', () => done({ status: got.statusCode, text }));
      });
      asked.on('error', failed).end(body);
    });
  }

  /** Waits until all nodes are members. */
  async settled() {
    const begun = Date.now();
    for (let node = 0; node < this.urls.length; node += 1) {
      for (;;) {
        const { text } = await this.ask(node, 'GET', '/v0/status');
        if (JSON.parse(text).membership === 'member') break;
        if (Date.now() - begun > TIMEOUT_MS) throw new Error(`${this.name(node)} is not a member`);
      }
    }
  }

  /**
   * Starts `clients` clients for each node, which read and write until the returned function is
   * called.
   */
  load({ clients = 1, keys = 500, bytes = 10 } = {}) {
    let going = true;
    let number = 0;
    const one = async (node) => {
      while (going) {
        number += 1;
        const target = `/v0/entity?id=key-${(number * 7919) % keys}`;
        const put = number % 3 === 0;
        // Ignores errors, because some tests have nodes that are down.
        await this.ask(node, put ? 'PUT' : 'GET', target, put ? `${number}`.padEnd(bytes, '.') : '')
          .catch(() => new Promise((done) => setTimeout(done, 100)));
      }
    };
    const each = Array.from({ length: clients * this.urls.length }, (_, client) => client);
    const all = each.map((client) => one(client % this.urls.length));
    return async () => {
      going = false;
      await Promise.all(all);
    };
  }

  async stop() {
    for (const child of this.nodes) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const gone = new Promise((done) => child.on('exit', done));
      child.kill('SIGKILL');
      await gone;
    }
    fs.rmSync(this.data, { recursive: true, force: true });
  }
}

module.exports = { Cluster };

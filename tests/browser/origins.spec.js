// Tests of pages of other sites in a real browser: their requests to a node on loopback, by each
// address that reaches the node, and the permissions of a page of `--allow-origin`.
const http = require('node:http');
const { test: base, expect } = require('./kvorum');
const { Cluster } = require('./cluster');

/** Serves an empty page on a free port of loopback. */
function site() {
  return new Promise((done) => {
    const server = http.createServer((_, answer) => {
      answer.setHeader('content-type', 'text/html');
      answer.end('<!doctype html><title>elsewhere</title><body>');
    }).listen(0, '127.0.0.1', () => done(server));
  });
}

const test = base.extend({
  launchOptions: async ({ launchOptions }, use) => {
    // Simulates an attacker's name server that points a name at loopback.
    const rebound = '--host-resolver-rules=MAP evil.example 127.0.0.1';
    await use({ ...launchOptions, args: [...launchOptions.args, rebound] });
  },
  shared: [
    async ({}, use) => {
      const server = await site();
      const { port } = server.address();
      const listed = `http://127.0.0.1:${port}`;
      const cluster = await Cluster.start(1, ['--allow-origin', listed]);
      await cluster.settled();
      const node = new URL(cluster.urls[0]).port;
      await use({ cluster, node, listed, foreign: `http://localhost:${port}` });
      await cluster.stop();
      server.close();
    },
    { scope: 'worker' },
  ],
  /** The node's answers to the page: method, URL, status. */
  answers: async ({ page, shared, wrong }, use) => {
    const answers = [];
    page.on('response', (answer) => {
      if (new URL(answer.url()).port !== shared.node) return;
      answers.push([answer.request().method(), answer.url(), answer.status()]);
    });
    await use(answers);
    // The browser itself logs refused requests as errors.
    wrong.length = 0;
  },
});

/** Sends every request that a page can send without permission; returns what the page can read. */
function attack(page, at) {
  return page.evaluate(async (node) => {
    const results = [];
    const send = async (target, options) => {
      try {
        const answer = await fetch(node + target, options);
        results.push(answer.type === 'opaque' ? 'opaque' : await answer.text());
      } catch {
        results.push('refused');
      }
    };
    const loaded = (element, name, target) => new Promise((done) => {
      element.onload = element.onerror = done;
      element[name] = node + target;
      document.body.append(element);
      setTimeout(done, 3000);
    });
    for (const mode of ['cors', 'no-cors']) {
      await send('/v0/entity?id=taken', { mode });
      await send('/v0/entity?id=taken&add=1', { mode, method: 'POST', body: 'x' });
      await send('/admin/profile?seconds=1&format=folded', { mode });
      await send('/admin/repair', { mode, method: 'POST' });
      await send('/ui/key?id=taken', { mode });
    }
    await send('/v0/entity?id=taken', { method: 'PUT', body: 'x' });
    await send('/v0/entity?id=taken', { method: 'DELETE' });
    await send('/v0/status', { headers: { authorization: 'Bearer x' } });
    await loaded(new Image(), 'src', '/admin/profile?seconds=1&format=folded');
    await loaded(document.createElement('script'), 'src', '/v0/entity?id=taken');
    await loaded(document.createElement('iframe'), 'src', '/ui');
    navigator.sendBeacon(`${node}/admin/repair`, 'x');
    await new Promise((done) => {
      const source = new EventSource(`${node}/ui/events`);
      source.onmessage = () => { results.push('read'); done(); };
      source.onerror = () => { source.close(); done(); };
    });
    await new Promise((done) => {
      const socket = new WebSocket(`${node.replace('http', 'ws')}/v0/peer`);
      socket.onopen = () => { results.push('read'); done(); };
      socket.onerror = done;
    });
    return results;
  }, at);
}

for (const host of ['127.0.0.1', 'localhost', '0.0.0.0', '[::ffff:127.0.0.1]', 'evil.example']) {
  test(`a foreign page gets nothing by way of ${host}`, async ({ page, shared, answers }) => {
    await page.goto(shared.foreign);
    const results = await attack(page, `http://${host}:${shared.node}`);
    expect(results.filter((one) => one !== 'refused' && one !== 'opaque')).toEqual([]);
    expect(answers.length, 'what came to the node at all').toBeGreaterThan(4);
    // Omits requests for the dashboard: a user may follow a link to the dashboard, and in a frame
    // the dashboard shows nothing.
    const done = answers.filter(([, url, status]) => ![403, 421].includes(status)
      && !url.includes('/ui'));
    expect(done).toEqual([]);
    const value = await shared.cluster.ask(0, 'GET', '/v0/entity?id=taken');
    expect(value.status).toBe(404);
    const repair = await shared.cluster.ask(0, 'GET', '/admin/repair');
    expect(JSON.parse(repair.text).number ?? 0).toBe(0);
  });
}

test('a page whose name was pointed at the node is not its own', async (
  { page, shared, answers },
) => {
  const got = await page.goto(`http://evil.example:${shared.node}/ui`);
  expect(got.status()).toBe(421);
  const results = await attack(page, '');
  expect(results.filter((text) => !/misdirected-request|refused/.test(text))).toEqual([]);
  expect(answers.map(([, , status]) => status).filter((status) => status !== 421)).toEqual([]);
});

test('a page of --allow-origin reads and writes, and does not administer', async (
  { page, shared, wrong },
) => {
  await page.goto(shared.listed);
  const results = await page.evaluate(async (node) => {
    const ask = async (target, options) => {
      const answer = await fetch(node + target, options);
      return [answer.status, await answer.text(), answer.headers.has('etag')];
    };
    const key = '/v0/entity?id=listed';
    const authorization = 'Bearer x';
    return [
      await ask(key, { method: 'PUT', body: 'v', headers: { authorization } }),
      await ask(key, {}),
      await ask(key, { method: 'DELETE', headers: { 'if-match': '*' } }),
      (await ask('/admin/repair', { method: 'POST' }))[0],
      (await ask('/admin/tokens?name=x', { method: 'POST' }))[0],
      (await ask('/metrics', {}))[0],
    ];
  }, shared.cluster.urls[0]);
  expect(results).toEqual([
    [201, '', true], [200, 'v', true], [202, '', false], 401, 401, 200,
  ]);
  expect(wrong.splice(0).filter((line) => !line.includes('status of 401'))).toEqual([]);
});

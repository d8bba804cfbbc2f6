// Tests of each panel and each action of the dashboard, on a cluster of three real nodes under
// load.
const { test: base, expect, picture } = require('./kvorum');
const { Cluster } = require('./cluster');

/** A cluster under load that all tests of this file share. All nodes are up when a test starts. */
const test = base.extend({
  shared: [
    async ({}, use) => {
      const cluster = await Cluster.start(3);
      await cluster.settled();
      const rest = cluster.load();
      await use(cluster);
      await rest();
      await cluster.stop();
    },
    { scope: 'worker' },
  ],
  cluster: async ({ shared }, use) => {
    await use(shared);
    for (const [number, node] of shared.nodes.entries()) {
      if (node.exitCode !== null || node.signalCode !== null) await shared.up(number);
    }
  },
  dashboard: async ({ page, cluster }, use) => {
    await page.goto(`${cluster.urls[0]}/ui`);
    await expect(page.getByRole('status').first()).toHaveText('3 of 3 nodes reached');
    await use(page);
  },
});

const panel = (page, name) => page.getByRole('region', { name: new RegExp(`^${name}`) });
const rowOf = (page, title, name) => panel(page, title).getByRole('row')
  .filter({ hasText: new RegExp(`^${name}`) });
const row = (page, name) => rowOf(page, 'Cluster', name);

/** Returns true if anything is drawn on a canvas. */
function drawn(canvas) {
  return canvas.evaluate((made) => {
    const { data } = made.getContext('2d').getImageData(0, 0, made.width, made.height);
    return data.some((value, place) => place % 4 === 3 && value > 0);
  });
}

test('the cluster is shown: every node with what it says of itself', async ({ dashboard }) => {
  await expect(dashboard).toHaveTitle('node-1 · kvorum');
  for (const name of ['node-1', 'node-2', 'node-3']) {
    const cells = row(dashboard, name);
    await expect(cells.locator('.badge')).toHaveText('up');
    await expect(cells.locator('.rate')).toHaveText(/^[1-9][\d.]*( k)?$/);
    await expect(cells.locator('.p99')).toHaveText(/(µs|ms)$/);
    await expect(cells.locator('.rss')).toHaveText(/MiB of 128 MiB$/);
    await expect(cells.locator('.skew')).toHaveText(/^[+−]\d+\.\d ms$/);
    await expect(cells.locator('.version')).toHaveText(/^\d+\.\d+\.\d+( \([0-9a-f]{7,}(-dirty)?\))?$/);
  }
  await expect(row(dashboard, 'node-1')).toHaveClass(/own/);
  await expect(dashboard.locator('.tile').first()).toContainText(/requests\/s[1-9]/);
});

test('the plots show what is going on, and tell it in words', async ({ dashboard }) => {
  const told = async (name, pattern) => {
    const canvas = panel(dashboard, name).locator('canvas').first();
    await expect.poll(() => drawn(canvas)).toBe(true);
    await expect(canvas).toHaveAttribute('aria-label', pattern);
  };
  await told('Latency', /p50 [\d.]+ (µs|ms)/);
  await told('Latency', /requests [1-9]/);
  await told('Requests', /get [1-9].*put [1-9]/);
  await told('Errors', /none 0/);
  await told('Background work', /log and sync [1-9].* %.*writes refused 0/);
});

test('errors are shown by status', async ({ dashboard, cluster }) => {
  const ask = () => cluster.ask(0, 'PUT', '/v0/entity?id=', 'x').catch(() => {});
  const asking = setInterval(ask, 20);
  const errors = panel(dashboard, 'Errors');
  await expect(errors.locator('canvas')).toHaveAttribute('aria-label', /400 bad request [1-9]/);
  await expect(dashboard.locator('.tile.bad')).toContainText(/errors\/s[1-9]/);
  clearInterval(asking);
});

test('queues, cache, memory and hints have figures', async ({ dashboard }) => {
  const rows = async (name, count) => {
    const lines = panel(dashboard, name).getByRole('listitem');
    await expect.poll(() => lines.count()).toBeGreaterThanOrEqual(count);
    for (const line of await lines.all()) await expect(line.locator('.value')).toHaveText(/\d|–/);
  };
  await rows('Queues', 6);
  await rows('Cache and filters', 7);
  await rows('Memory and disk', 7);
  await rows('Hints', 3);
  await expect(panel(dashboard, 'Queues').getByText('of 3,072')).toBeVisible();
  await expect(panel(dashboard, 'Memory and disk').getByText(/MiB of 384 MiB/)).toBeVisible();
});

test('rounds of repair are shown with what came of them, and why not', async (
  { dashboard, cluster },
) => {
  const of = (name, column) => rowOf(dashboard, 'Repair', name).locator(`.${column}`);
  await expect(of('node-1', 'result')).toHaveText('no round yet');
  await expect(of('node-1', 'full')).toHaveText('none since the start');
  await expect(of('node-3', 'purgeable')).toHaveText(/B, nothing proven yet$/);
  const asked = await cluster.ask(0, 'POST', '/admin/repair?full=true');
  expect(asked.status).toBe(202);
  await expect(of('node-1', 'result')).toHaveText('equal');
  await expect(of('node-1', 'full')).toHaveText(/^\d+ s ago, \d\d:\d\d:\d\d$/);
  await expect(of('node-1', 'last')).toHaveText(/^full, \d+ s ago, took \d+\.\d s$/);
  await expect(of('node-1', 'keys')).toHaveText(/^\d+ differed, \d+ repaired$/);
  await expect(of('node-1', 'damage')).toHaveText('0 found, 0 healed');
  await expect(of('node-2', 'result')).toHaveText('no round yet');
  await cluster.kill(2);
  await cluster.ask(0, 'POST', '/admin/repair');
  await expect(of('node-1', 'result')).toHaveText(/^not equal\s*not compared with node-3$/);
  await expect(rowOf(dashboard, 'Repair', 'node-3')).toHaveClass('gone');
  await dashboard.getByText('node-2', { exact: true }).first().click();
  await expect(of('node-1', 'result')).toHaveCount(0);
  await expect(of('node-2', 'result')).toHaveText('no round yet');
});

test('what a round could not do is told', async ({ page, cluster }) => {
  await page.addInitScript(() => {
    const parse = JSON.parse;
    JSON.parse = (text) => {
      const told = parse(text);
      const repair = told?.snapshot?.status?.repair;
      if (repair) Object.assign(repair, window.round);
      return told;
    };
    const last = {
      number: 3, full: false, began_ms: Date.now() - 90_000, took_ms: 30_000, records: 10,
      bytes_read: 5, differing: 12_345, repaired: 12_343, failed: 2, damaged: 3, healed: 1,
      unhealed: [{ node: 'node-2', first: 'a', last: 'b', why: 'the other one <too>' }],
      stopped: 'the node stopped', equal: false,
    };
    const current = { number: 4, full: true, began_ms: Date.now(), records: 50, of_records: 200 };
    window.round = { last, current, last_full_ms: Date.now() - 20 * 86_400_000 };
  });
  await page.goto(`${cluster.urls[0]}/ui`);
  const of = (column) => rowOf(page, 'Repair', 'node-1').locator(`.${column}`);
  await expect(of('result').locator('.badge')).toHaveText('not equal');
  await expect(of('result').locator('small')).toHaveText('the round ended early: the node stopped; '
    + '2 keys could not be made equal; node-2 cannot read a to b: the other one <too>; '
    + '1 more damaged ranges are not healed. full round: 25.0 % so far');
  await expect(of('full')).toHaveText(/^20 d ago, /);
  await expect(of('full')).toHaveClass(/warn/);
  await expect(of('last')).toHaveText(/^incremental, \d+ s ago, took 30 s$/);
  await expect(of('keys')).toHaveText('12.3 k differed, 12.3 k repaired');
  await expect(of('damage')).toHaveText('3 found, 1 healed');
  await expect(of('damage')).toHaveClass(/warn/);
  for (const width of [375, 761, 1180, 1440]) {
    await page.setViewportSize({ width, height: 800 });
    expect(await overflowing(page), `${width} px wide`).toEqual([0]);
  }
});

/** Returns the tile with this name, which shows one figure of the cluster. */
const tile = (page, name) => page.locator('.tile').filter({ hasText: new RegExp(`^${name}`) });

/** Returns the number of keys that the page shows; each key counts once, not once a copy. */
async function keysOnce(page) {
  const text = await tile(page, 'keys').locator('b').textContent();
  return Number(text.replace('≈ ', ''));
}

test('a node that is lost does not look like lost data', async ({ dashboard, cluster }) => {
  await expect(tile(dashboard, 'keys')).toContainText('3 copies each');
  const outlook = dashboard.locator('#outlook');
  await expect(outlook).toHaveText('Reads and writes work: they need 2 of the 3 copies of a key. '
    + 'One failure would stop none of them.');
  // The number grows until the load has written all of its 500 keys. Other tests have written more
  // keys.
  await expect.poll(() => keysOnce(dashboard)).toBeGreaterThan(490);
  const [before, disk] = [await keysOnce(dashboard), await tile(dashboard, 'disk').textContent()];
  expect(before).toBeLessThan(700);
  await cluster.kill(2);
  await expect(dashboard.getByRole('status').first()).toHaveText('2 of 3 nodes reached');
  await expect(outlook).toHaveText('2 of 3 nodes. Reads and writes still work: they need 2 of the 3 '
    + 'copies of a key. One more failure would stop them; requests with ack=1 would still work. '
    + 'What node-3 holds stays on disk, and the writes that it misses are kept for it.');
  await expect(tile(dashboard, 'keys')).toContainText('2 of 3 nodes up');
  expect(Math.abs(await keysOnce(dashboard) - before)).toBeLessThan(60);
  expect(Number.parseFloat(await tile(dashboard, 'disk').locator('b').textContent()))
    .toBeGreaterThanOrEqual(0.9 * Number.parseFloat(disk.replace(/^disk/, '')));
  const gone = row(dashboard, 'node-3');
  await expect(gone.locator('.membership small')).toHaveText(/; grey: as of \d\d:\d\d:\d\d$/);
  await expect(gone.locator('.keys')).toHaveText(/^\d/);
  await expect(gone.locator('.disk')).toHaveText(/iB$/);
  const colour = (cell) => cell.evaluate((one) => getComputedStyle(one).color);
  expect(await colour(gone.locator('.keys'))).not.toBe(
    await colour(row(dashboard, 'node-1').locator('.keys')),
  );
  // A newly opened page has never received data of the lost node.
  await dashboard.reload();
  await expect(dashboard.getByRole('status').first()).toHaveText('2 of 3 nodes reached');
  await expect(gone.locator('.badge')).toHaveText('unreachable');
  await expect(gone.locator('.keys')).toHaveText('–');
  expect(Math.abs(await keysOnce(dashboard) - before)).toBeLessThan(60);
});

test('what works while nodes are lost is told for each size of a cluster', async ({ dashboard }) => {
  const told = await dashboard.evaluate(async () => {
    const { outlook } = await import('/ui/outlook.js');
    const all = [[1, 1, 0], [2, 2, 0], [2, 2, 1], [3, 3, 0], [3, 3, 1], [3, 3, 2], [3, 3, 3], [5, 3, 0],
      [5, 3, 1], [5, 3, 2], [5, 3, 3], [5, 3, 4], [5, 5, 2], [5, 1, 1]];
    return Object.fromEntries(all.map((one) => [one.join(' '), outlook(...one)]));
  });
  const of3 = 'they need 2 of the 3 copies of a key.';
  const both = 'they need all 2 copies of a key.';
  const partly = 'Reads and writes work for keys with fewer than 2 copies on lost nodes, and are '
    + `answered 504 for the others: ${of3}`;
  const bare = 'Requests with ack=1 still work.';
  const some = 'Requests with ack=1 work for keys with a copy on another node.';
  expect(told).toEqual({
    '1 1 0': 'Reads and writes work: they need the only copy of a key. Its failure would stop '
      + 'everything.',
    '2 2 0': `Reads and writes work: ${both} One failure would stop them; requests with ack=1 would `
      + 'still work.',
    '2 2 1': `Reads and writes are answered 504: ${both} ${bare} One more failure would stop `
      + 'everything.',
    '3 3 0': `Reads and writes work: ${of3} One failure would stop none of them.`,
    '3 3 1': `Reads and writes still work: ${of3} One more failure would stop them; requests with `
      + 'ack=1 would still work.',
    '3 3 2': `Reads and writes are answered 504: ${of3} ${bare} One more failure would stop `
      + 'everything.',
    '3 3 3': 'No node can be reached: nothing is answered.',
    '5 3 0': `Reads and writes work: ${of3} One failure would stop none of them.`,
    '5 3 1': `Reads and writes still work: ${of3} One more failure would stop them for keys with 2 `
      + 'copies on lost nodes.',
    '5 3 2': `${partly} ${bare} One more failure would stop them for more keys.`,
    '5 3 3': `${partly} ${some} One more failure would stop them.`,
    '5 3 4': `Reads and writes are answered 504: ${of3} ${some} One more failure would stop `
      + 'everything.',
    '5 5 2': 'Reads and writes still work: they need 3 of the 5 copies of a key. One more failure would '
      + 'stop them; requests with ack=1 would still work.',
    '5 1 1': 'Reads and writes work for keys with fewer than 1 copies on lost nodes, and are answered '
      + '504 for the others: they need the only copy of a key. Requests with ack=1 work for keys with '
      + 'a copy on another node. One more failure would stop them for more keys.',
  });
});

test('the past is there after a reload, and what is not known of it is labelled', async (
  { dashboard, cluster },
) => {
  const plot = panel(dashboard, 'Requests').locator('canvas');
  const label = () => plot.getAttribute('aria-label');
  /** Returns the plot's label for the sample that is `seconds` seconds older than the newest. */
  const ago = async (seconds) => {
    await plot.focus();
    await dashboard.keyboard.press('End');
    for (let step = 0; step < seconds; step += 10) await dashboard.keyboard.press('Shift+ArrowLeft');
    return label();
  };
  await cluster.kill(2);
  await expect.poll(label, { timeout: 30_000 }).toContain('no data from node-3');
  await dashboard.waitForTimeout(5000);
  await cluster.up(2);
  await expect(dashboard.getByRole('status').first()).toHaveText('3 of 3 nodes reached');
  await expect.poll(label).not.toContain('node-3');
  await dashboard.reload();
  await expect(dashboard.getByRole('status').first()).toHaveText('3 of 3 nodes reached');
  await expect.poll(() => ago(10)).toMatch(/node-3 not running, get [1-9]/);
  await expect(panel(dashboard, 'Requests').locator('.lack')).toHaveText('node-3 not running');
});

test('a term tells what it means, by mouse, by touch and in the help', async ({ dashboard }) => {
  const mute = await dashboard.evaluate(() => {
    const all = [...document.querySelectorAll(
      'h2, thead th, .tile > span, .rows .name, .bars .name, .legend .key, #change > label, '
        + '.events label, .badge:not([hidden])',
    )];
    return all.filter((one) => one.closest('main') && one.id !== 'graphs-title')
      .filter((one) => !one.querySelector('[data-term][aria-description]') && !one.dataset.term)
      .map((one) => one.textContent);
  });
  expect(mute).toEqual([]);
  const tip = dashboard.locator('#tip');
  await panel(dashboard, 'Cluster').getByText('Hints for it', { exact: true }).hover();
  await expect(tip).toHaveText(/^Writes that this node missed/);
  await dashboard.keyboard.press('Escape');
  await expect(tip).toBeHidden();
  await panel(dashboard, 'Queues').getByText('disk reads').click();
  await expect(tip).toHaveText(/wait for the disk\.$/);
  await dashboard.getByRole('heading', { name: 'kvorum' }).click();
  await expect(tip).toBeHidden();
  await dashboard.keyboard.press('?');
  await dashboard.getByText('What the terms mean').click();
  await expect(dashboard.locator('#terms')).toContainText('Names this state of the value');
  await dashboard.keyboard.press('Escape');
});

test('a node that is killed is named as unreachable, and comes back', async (
  { dashboard, cluster },
) => {
  await cluster.kill(2);
  const state = dashboard.getByRole('status').first();
  await expect(state).toHaveText('2 of 3 nodes reached');
  const gone = row(dashboard, 'node-3');
  await expect(gone.locator('.badge')).toHaveText('unreachable');
  await expect(gone.locator('.membership small')).toHaveText(/^since \d\d:\d\d:\d\d: ./);
  await expect(gone.locator('.hints')).toHaveText(/^[1-9][\d,]*$/);
  await expect(panel(dashboard, 'Hints').getByRole('listitem').nth(2)).toHaveClass(/warn/);
  await picture(dashboard, 'dashboard-lost-node');
  await cluster.up(2);
  await expect(state).toHaveText('3 of 3 nodes reached');
  await expect(gone.locator('.badge')).toHaveText('up');
  await expect(gone.locator('.hints')).toHaveText('0');
});

test('the node that serves the page goes: the page says so and goes on with it', async (
  { dashboard, cluster, wrong },
) => {
  await cluster.kill(0);
  const notice = dashboard.getByRole('alert');
  await expect(notice).toContainText("no data from node-1: it is unreachable");
  await expect(notice.getByRole('link', { name: 'node-2' })).toHaveAttribute(
    'href', `${cluster.urls[1]}/ui`,
  );
  await expect(row(dashboard, 'node-1').locator('.badge')).toHaveText('unreachable');
  await expect(row(dashboard, 'node-2').locator('.badge')).toHaveText('unknown');
  await cluster.up(0);
  await expect(notice).toBeHidden();
  await expect(dashboard.getByRole('status').first()).toHaveText('3 of 3 nodes reached');
  // The browser itself logs each failed attempt as an error.
  expect(wrong.every((line) => line.includes('ERR_'))).toBe(true);
  wrong.length = 0;
});

test('the node that serves the page hangs: the page says so, and what it does not know', async (
  { dashboard, cluster },
) => {
  const state = dashboard.getByRole('status').first();
  const notice = dashboard.getByRole('alert');
  const badge = (name) => row(dashboard, name).locator('.badge');
  cluster.nodes[0].kill('SIGSTOP');
  try {
    await expect(state).toHaveText('not connected');
    await expect(notice).toContainText('no data from node-1: no response for 4 s');
    await expect(notice.getByRole('link', { name: 'node-3' })).toBeVisible();
    await expect(badge('node-1')).toHaveText('unreachable');
    await expect(row(dashboard, 'node-1').locator('.rate')).toHaveText('–');
    for (const name of ['node-2', 'node-3']) {
      await expect(badge(name)).toHaveText('unknown');
      const why = row(dashboard, name).locator('.membership small');
      await expect(why).toHaveText(/^since \d\d:\d\d:\d\d: reached only through node-1$/);
    }
    await expect(tile(dashboard, 'keys')).toContainText('as they said last');
    await expect(dashboard.locator('.role', { hasText: 'member, unknown' })).toHaveCount(2);
  } finally {
    cluster.nodes[0].kill('SIGCONT');
  }
  await expect(state).toHaveText('3 of 3 nodes reached');
  await expect(notice).toBeHidden();
  for (const name of ['node-1', 'node-2', 'node-3']) await expect(badge(name)).toHaveText('up');
});

test('a node that hangs and then dies is not called up', async ({ dashboard, cluster, wrong }) => {
  const badge = (name) => row(dashboard, name).locator('.badge');
  cluster.nodes[0].kill('SIGSTOP');
  await expect(badge('node-1')).toHaveText('unreachable');
  await cluster.kill(0);
  await expect(dashboard.getByRole('alert')).toContainText("it is unreachable");
  await expect(badge('node-1')).toHaveText('unreachable');
  await expect(badge('node-2')).toHaveText('unknown');
  await cluster.up(0);
  for (const name of ['node-1', 'node-2', 'node-3']) await expect(badge(name)).toHaveText('up');
  expect(wrong.every((line) => line.includes('ERR_'))).toBe(true);
  wrong.length = 0;
});

test('a key is looked up on each replica', async ({ dashboard, cluster }) => {
  await cluster.ask(1, 'PUT', '/v0/entity?id=a%20key%2F%C3%A9&ack=3&from=3', 'hello');
  const found = dashboard.locator('#found');
  const look = async (key) => {
    await dashboard.getByLabel('Key', { exact: true }).fill(key);
    await dashboard.getByRole('button', { name: 'Look up' }).click();
  };
  await look('a key/é');
  await expect(found).toContainText('All 3 replicas hold the same version.');
  await expect(found.getByRole('row')).toHaveCount(4);
  await expect(found.getByText('value newest')).toHaveCount(3);
  for (const width of [1181, 1280, 1366]) {
    await dashboard.setViewportSize({ width, height: 800 });
    const room = await found.evaluate((one) => [one.scrollWidth, one.clientWidth]);
    expect(room[0], `${width} px wide`).toBeLessThanOrEqual(room[1]);
  }
  await expect(found.getByText(/by node-2$/)).toHaveCount(3);
  await expect(found.getByLabel('Value')).toHaveText('hello');
  await expect(found.locator('.facts')).toContainText(/ETag"[0-9a-f]{16}-[0-9a-f]{8}"TTLnone/);
  await look('a%20key%2F%C3%A9');
  await expect(found).toContainText('All 3 replicas hold the same version.');
  await look('nobody wrote this');
  await expect(found).toContainText('No replica that answered has this key.');
  await look('');
  await expect(found).toHaveText('The key must not be empty.');
});

test('a replica that is down or behind is told apart', async ({ dashboard, cluster }) => {
  await cluster.ask(0, 'PUT', '/v0/entity?id=split&ack=3&from=3', 'old');
  await cluster.kill(1);
  await cluster.ask(0, 'DELETE', '/v0/entity?id=split&ack=2&from=3');
  await dashboard.keyboard.press('/');
  await dashboard.keyboard.type('split');
  await dashboard.keyboard.press('Enter');
  const found = dashboard.locator('#found');
  await expect(found).toContainText('2 of 3 replicas hold the newest version that was found.');
  await expect(found).toContainText('1 of 3 replicas did not answer.');
  await expect(found.getByText('tombstone newest')).toHaveCount(2);
  await expect(found.getByText("unreachable unknown")).toHaveCount(1);
});

test('a value is shown as far as it can be read', async ({ dashboard, cluster }) => {
  const look = async (value, query = '') => {
    const put = await cluster.ask(0, 'PUT', `/v0/entity?id=shown&ack=3${query}`, value);
    expect(put.status).toBe(201);
    await dashboard.getByLabel('Key', { exact: true }).fill('shown');
    await dashboard.getByRole('button', { name: 'Look up' }).click();
  };
  const facts = dashboard.locator('.facts');
  const value = facts.getByLabel('Value');
  await look('<img src=x onerror=alert(1)>\n\u202e\u200bend', '&ttl=1h');
  await expect(value).toHaveText('<img src=x onerror=alert(1)>\n\\u{202e}\\u{200b}end');
  await expect(facts.locator('img')).toHaveCount(0);
  await expect(facts).toContainText(/TTL60 min, until .*\d\d:\d\d:\d\d/);
  await look(Buffer.from([0, 255, 16]));
  await expect(value).toHaveText('00ff10');
  await expect(facts).toContainText('3 B, not UTF-8: in hex digits');
  await look('a'.repeat(5000));
  await expect(facts).toContainText('4.88 KiB, the first 2.00 KiB');
  await look('b'.repeat(20_000));
  await expect(facts).toContainText('19.5 KiB: too long to be shown here. kvorum get prints it.');
  await look('');
  await expect(facts).toContainText('0 B (empty)');
  await look('', '&ttl=1s');
  await expect.poll(async () => {
    await dashboard.getByRole('button', { name: 'Look up' }).click();
    await expect(dashboard.locator('#found')).not.toContainText('asking');
    return facts.textContent();
  }).toContain('The value has expired.');
  const [lookup, members] = await Promise.all(['Key look-up', 'Members'].map((name) => (
    panel(dashboard, name).boundingBox())));
  expect(lookup.y).toBeLessThan(members.y);
});

test('what the node refuses is told', async ({ dashboard, wrong }) => {
  await dashboard.getByLabel('Key', { exact: true }).fill('100%');
  await dashboard.getByRole('button', { name: 'Look up' }).click();
  await expect(dashboard.locator('#found')).toContainText('without two hex digits');
  expect(wrong.splice(0).join()).toContain('400');
});

test('a profile is recorded, shown in a frame without an origin, and saved', async (
  { dashboard },
) => {
  await dashboard.getByRole('button', { name: 'Log in' }).click();
  await dashboard.getByLabel('Token').fill('secret');
  await dashboard.getByLabel('Token').press('Enter');
  const asked = [];
  await dashboard.route('**/admin/profile?*', async (route) => {
    asked.push([route.request().url(), route.request().headers().authorization]);
    const contentType = 'text/html';
    const body = `<!doctype html><title>p</title><p id=p>waiting</p><script>
      document.getElementById('p').textContent = 'drawn, origin ' + origin;
      try { parent.document.title = 'taken'; } catch { document.title = 'kept out'; }</script>`;
    await route.fulfill({ contentType, body });
  });
  const form = panel(dashboard, 'Profile');
  await form.getByLabel('Locks').check();
  await form.getByLabel('Seconds').fill('2');
  await form.getByRole('button', { name: 'Record' }).click();
  const shown = dashboard.frameLocator('iframe[title="Recorded profile"]');
  await expect(shown.locator('#p')).toHaveText('drawn, origin null');
  await expect(dashboard).toHaveTitle('node-1 · kvorum');
  expect(asked[0][0]).toContain('/admin/profile?event=cpu,lock&seconds=2&format=html');
  expect(asked[0][1]).toBe('Bearer secret');
  const saving = dashboard.waitForEvent('download');
  await dashboard.getByRole('button', { name: 'Save as a file' }).click();
  expect((await saving).suggestedFilename()).toMatch(/^127\.0\.0\.1-\d+-profile\.html$/);
  await dashboard.getByRole('button', { name: 'Close' }).first().click();
  await expect(dashboard.locator('iframe')).toHaveCount(0);
  await expect(form.getByRole('button', { name: 'Record' })).toBeFocused();
});

test('what the node itself records is drawn in the frame', async ({ dashboard }) => {
  const form = panel(dashboard, 'Profile');
  await form.getByLabel('Wall').check();
  await form.getByLabel('Seconds').fill('1');
  await form.getByRole('button', { name: 'Record' }).click();
  await expect(form.locator('#recorded')).toHaveText('Recorded 1 s of cpu, wall.');
  const shown = dashboard.frameLocator('iframe[title="Recorded profile"]');
  await expect(shown.locator('body')).toContainText(/Profile of http:.*[1-9]\d* samples/s);
});

test('a recording that is refused says why', async ({ dashboard, wrong }) => {
  await dashboard.route('**/admin/profile?*', (route) => route.fulfill({
    status: 409,
    contentType: 'application/problem+json',
    body: JSON.stringify({ title: 'A recording is under way', detail: 'until 12:00', status: 409 }),
  }));
  const form = panel(dashboard, 'Profile');
  await form.getByRole('button', { name: 'Record' }).click();
  await expect(form.locator('#recorded')).toHaveText('A recording is under way: until 12:00');
  await expect(form.getByRole('button', { name: 'Record' })).toBeEnabled();
  await form.getByLabel('CPU').uncheck();
  await form.getByRole('button', { name: 'Record' }).click();
  await expect(form.locator('#recorded')).toHaveText('Select at least one event.');
  expect(wrong.splice(0).join()).toContain('409');
});

test('everything is done by the keyboard alone', async ({ dashboard }) => {
  const press = (key) => dashboard.keyboard.press(key);
  await press('2');
  await expect(dashboard.getByRole('radio', { name: 'node-2' })).toBeChecked();
  await press('0');
  await expect(dashboard.getByRole('radio', { name: 'all', exact: true }).first()).toBeChecked();
  await press('w');
  await expect(dashboard.getByRole('radio', { name: '15 min' })).toBeChecked();
  await press('k');
  await expect(dashboard.getByRole('radio', { name: 'get' })).toBeChecked();
  await press('p');
  await expect(dashboard.getByRole('button', { name: 'Resume' })).toBeVisible();
  const plot = panel(dashboard, 'Latency').locator('canvas');
  await plot.focus();
  const label = await plot.getAttribute('aria-label');
  await press('ArrowLeft');
  await press('ArrowLeft');
  await expect(plot).not.toHaveAttribute('aria-label', label);
  await press('Escape');
  await expect(plot).toHaveAttribute('aria-label', label);
  await press('p');
  await expect(dashboard.getByRole('button', { name: 'Pause' })).toBeVisible();
  await press('?');
  await expect(dashboard.getByRole('dialog')).toContainText('look up a key');
  await press('Escape');
  await expect(dashboard.getByRole('dialog')).toBeHidden();
  await press('r');
  await expect(dashboard.getByRole('button', { name: 'Record' })).toBeFocused();
  await press('/');
  await expect(dashboard.getByLabel('Key', { exact: true })).toBeFocused();
  await press('w');
  await expect(dashboard.getByLabel('Key', { exact: true })).toHaveValue('w');
});

test('the focus is seen, and goes through the page in its order', async ({ dashboard }) => {
  await dashboard.keyboard.press('Tab');
  await expect(dashboard.getByRole('link', { name: 'Skip to content' })).toBeFocused();
  const order = [];
  for (;;) {
    await dashboard.keyboard.press('Tab');
    const at = await dashboard.evaluate(() => {
      const focused = document.activeElement;
      const seen = focused.matches('.choice input') ? focused.nextSibling : focused;
      const { outlineStyle, outlineWidth } = getComputedStyle(seen);
      return {
        what: focused.id || focused.name || focused.textContent.trim() || focused.tagName,
        seen: outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2,
        end: focused === document.body,
      };
    });
    if (at.end) break;
    order.push(at);
  }
  expect(order.filter((at) => !at.seen).map((at) => at.what)).toEqual([]);
  const names = order.map((at) => at.what);
  const wanted = ['nodes', 'window', 'pause', 'theme', 'session', 'help', 'key', 'seconds'];
  expect(names.filter((name) => wanted.includes(name))).toEqual(wanted);
});

test('the choice of a node holds for all panels', async ({ dashboard }) => {
  const memory = panel(dashboard, 'Memory and disk').getByRole('listitem').first();
  await expect(memory).toContainText('of 384 MiB');
  await dashboard.getByText('node-3', { exact: true }).first().click();
  await expect(memory).toContainText('of 128 MiB');
});

test('a theme is chosen and kept', async ({ dashboard }) => {
  const dark = () => dashboard.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await dark();
  await dashboard.getByRole('button', { name: 'Theme: system' }).click();
  await dashboard.getByRole('button', { name: 'Theme: light' }).click();
  await expect(dashboard.getByRole('button', { name: 'Theme: dark' })).toBeVisible();
  expect(await dark()).not.toBe(light);
  await dashboard.reload();
  await expect(dashboard.getByRole('button', { name: 'Theme: dark' })).toBeVisible();
});

test.describe('in a dark system', () => {
  test.use({ colorScheme: 'dark', reducedMotion: 'reduce' });
  test('the page is dark, and its text can be read', async ({ dashboard }) => {
    const low = await dashboard.evaluate(() => {
      const rgb = (text) => text.match(/[\d.]+/g).slice(0, 3).map(Number);
      const light = (colour) => {
        const [r, g, b] = rgb(colour).map((value) => value / 255)
          .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const behind = (element) => {
        const { backgroundColor } = getComputedStyle(element);
        const clear = backgroundColor === 'rgba(0, 0, 0, 0)';
        return clear && element.parentElement ? behind(element.parentElement) : backgroundColor;
      };
      const all = [...document.querySelectorAll('h1, h2, small, td, th, b, span, button, a, p, dt, dd, pre, code')];
      return all.filter((element) => element.textContent.trim() && element.offsetParent)
        .map((element) => {
          const [a, b] = [getComputedStyle(element).color, behind(element)].map(light);
          return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.trim()];
        }).filter(([contrast]) => contrast < 4.5);
    });
    expect(low).toEqual([]);
    const body = await dashboard.evaluate(() => getComputedStyle(document.body).backgroundColor);
    expect(body).toBe('rgb(14, 18, 23)');
    const scroll = await dashboard.evaluate(
      () => getComputedStyle(document.documentElement).scrollBehavior,
    );
    expect(scroll).toBe('auto');
  });
});

test.describe('on a phone', () => {
  test.use({ viewport: { width: 375, height: 740 }, hasTouch: true });
  test('nothing is wider than the screen', async ({ dashboard, cluster }) => {
    await cluster.ask(0, 'PUT', '/v0/entity?id=k', 'v');
    await dashboard.getByLabel('Key', { exact: true }).fill('k');
    await dashboard.getByRole('button', { name: 'Look up' }).tap();
    await expect(dashboard.locator('#found')).toContainText('All 3 replicas');
    const wide = await dashboard.evaluate(() => {
      const out = [...document.querySelectorAll('main *, header *')]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5);
      return [document.documentElement.scrollWidth, out.map((element) => element.outerHTML)];
    });
    expect(wide).toEqual([375, []]);
    await dashboard.evaluate(() => scrollTo(0, 0));
    await picture(dashboard, 'dashboard-phone', { fullPage: true });
  });
});

/**
 * Returns by how many pixels the page is wider than the window, and the elements that are wider
 * than the window or than their panel. `name` replaces all nodes' names until the next snapshot.
 */
function overflowing(page, name = null) {
  return page.evaluate((called) => {
    for (const link of called ? document.querySelectorAll('.cluster tbody th a') : []) {
      link.textContent = called;
    }
    const seen = [...document.querySelectorAll('main *, header *')].filter((one) => one.offsetParent);
    const out = seen.filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5);
    const full = seen.filter((one) => one.matches('.panel') && one.scrollWidth > one.clientWidth + 1);
    const page = document.documentElement.scrollWidth - innerWidth;
    return [page, ...[...out, ...full].map((one) => one.outerHTML.slice(0, 100))];
  }, name);
}

test('at no width anything is cut off or overlaps', async ({ dashboard }) => {
  await expect(row(dashboard, 'node-1').locator('.rate')).toHaveText(/^[1-9]/);
  for (const width of [320, 350, 351, 414, 600, 760, 761, 820, 960, 1020, 1021, 1180, 1181, 1440]) {
    await dashboard.setViewportSize({ width, height: 800 });
    for (const name of [null, 'http://192.168.100.10:18080']) {
      expect(await overflowing(dashboard, name), `${width} px wide, ${name}`).toEqual([0]);
    }
  }
});

test.describe('pictures for the documentation', () => {
  test.skip(process.env.UPDATE_SCREENSHOTS !== '1', 'they take two minutes, and prove nothing');
  test.use({ viewport: { width: 1440, height: 900 } });
  test('a cluster of three under load, light and dark', async ({ page }) => {
    test.setTimeout(240_000);
    const cluster = await Cluster.start(3, ['--memtable', '1MiB']);
    await cluster.settled();
    const rest = cluster.load({ clients: 6, keys: 40_000, bytes: 700 });
    await page.goto(`${cluster.urls[0]}/ui`);
    await page.waitForTimeout(100_000);
    // Requests a round, because the first scheduled round begins an hour after the start.
    await cluster.ask(0, 'POST', '/admin/repair');
    await expect(rowOf(page, 'Repair', 'node-1').locator('.badge')).toHaveText('equal', {
      timeout: 60_000,
    });
    await cluster.ask(0, 'PUT', '/v0/entity?id=greeting&ack=3&from=3', 'hello');
    await page.getByLabel('Key', { exact: true }).fill('greeting');
    await page.getByRole('button', { name: 'Look up' }).click();
    await expect(page.locator('#found')).toContainText('All 3 replicas');
    await page.evaluate(() => {
      document.activeElement.blur();
      scrollTo({ top: 0, behavior: 'instant' });
    });
    await picture(page, 'dashboard', { fullPage: true });
    await page.emulateMedia({ colorScheme: 'dark' });
    await page.waitForTimeout(2000);
    await picture(page, 'dashboard-dark', { fullPage: true });
    // Closes the page first, because the end of a node would be an error of the page.
    await page.close();
    await rest();
    await cluster.stop();
  });
});

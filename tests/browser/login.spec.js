// The dashboard of nodes that require a token: login, missing scopes, logout; and names and keys
// that would run as scripts if the page inserted them as markup.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { test: base, expect, kvorum } = require('./kvorum');
const { Cluster } = require('./cluster');

const ADMIN = 'the admin token of this test';

/** Creates a directory with the secrets of nodes and commands; returns its path. */
function files() {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'kvorum-login-'));
  for (const [name, text] of [['admin', ADMIN], ['secret', 'a secret of this test']]) {
    fs.writeFileSync(path.join(made, name), text, { mode: 0o600 });
  }
  return made;
}

/** Creates a token with these scopes; returns its text. */
function token(shared, name, scopes, ...args) {
  return kvorum('token', 'create', '--name', name, '--for', scopes, '--url',
    shared.cluster.urls[0], '--token-file', path.join(shared.files, 'admin'), ...args).trim();
}

const test = base.extend({
  shared: [
    async ({}, use) => {
      const made = files();
      const cluster = await Cluster.start(2, ['--require-auth', '--admin-token-file',
        path.join(made, 'admin'), '--cluster-secret-file', path.join(made, 'secret')]);
      await use({ cluster, files: made });
      await cluster.stop();
      fs.rmSync(made, { recursive: true, force: true });
    },
    { scope: 'worker' },
  ],
  /** A page on which nobody has logged in, and a list of all requests of the page. */
  login: async ({ page, shared, wrong }, use) => {
    const asked = [];
    page.on('request', (request) => asked.push(request));
    await page.goto(`${shared.cluster.urls[0]}/ui`);
    await expect(state(page)).toHaveText('not logged in');
    await use({ page, asked });
    // The browser itself logs each refused request as an error.
    const others = wrong.filter((line) => !/status of 40[13]/.test(line));
    expect(others).toEqual([]);
    wrong.length = 0;
  },
});

const state = (page) => page.getByRole('status').first();
const panel = (page, name) => page.getByRole('region', { name: new RegExp(`^${name}`) });
const button = (page, name) => page.getByRole('button', { name, exact: true });

async function enter(page, text) {
  await page.getByLabel('Token').fill(text);
  await page.getByLabel('Token').press('Enter');
}

async function look(page, key) {
  await page.getByLabel('Key', { exact: true }).fill(key);
  await button(page, 'Look up').click();
}

test('without a token the page shows a login, and asks no more', async ({ login }) => {
  const { page, asked } = login;
  asked.length = 0;
  await page.clock.install();
  await page.reload();
  await expect(state(page)).toHaveText('not logged in');
  await expect(page.getByLabel('Token')).toBeFocused();
  await expect(panel(page, 'Cluster')).toContainText('Log in with a token for metrics.');
  await expect(panel(page, 'Cluster').locator('table')).toBeHidden();
  for (const name of ['Members', 'Profile']) {
    await expect(panel(page, name)).toContainText('Log in with a token for admin.');
    await expect(panel(page, name).locator('form')).toBeHidden();
  }
  await look(page, 'k');
  await expect(page.locator('#found')).toHaveText('Log in with a token for data.');
  await page.clock.runFor(30_000);
  const data = asked.filter((request) => /events|admin|key/.test(request.url()));
  expect(data.map((request) => new URL(request.url()).pathname).sort()).toEqual(
    ['/admin/layout', '/ui/events', '/ui/key'],
  );
});

test('with the admin token all is shown, a reload keeps it, and logging out forgets it', async (
  { login, shared },
) => {
  const { page, asked } = login;
  await enter(page, ADMIN);
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
  await expect(page.getByLabel('Token')).toBeHidden();
  await expect(panel(page, 'Members').locator('#layout')).toContainText('Epoch');
  await look(page, 'nobody wrote this');
  await expect(page.locator('#found')).toContainText('No replica that answered has this key.');
  const own = await page.evaluate(() => ({ ...sessionStorage }));
  expect(own).toEqual({ 'kvorum-token': ADMIN });
  const kept = await page.evaluate(async () => JSON.stringify([
    { ...localStorage }, document.cookie, location.href,
    document.documentElement.outerHTML, [...document.querySelectorAll('input')].map((i) => i.value),
    await indexedDB.databases(), await caches.keys(), history.state, window.name,
  ]));
  expect(kept).not.toContain(ADMIN);
  for (const request of asked) expect(request.url()).not.toContain('token');
  const cookies = await page.context().cookies();
  expect(cookies).toEqual([]);
  await page.reload();
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
  await expect(page.locator('#session')).toHaveText('Log out');
  await expect(page.getByLabel('Token')).toBeHidden();
  // Another tab starts without a token.
  const other = await page.context().newPage();
  await other.goto(`${shared.cluster.urls[0]}/ui`);
  await expect(state(other)).toHaveText('not logged in');
  await other.close();
  const before = asked.length;
  await button(page, 'Log out').click();
  await expect(state(page)).toHaveText('not logged in');
  await expect(page.locator('.cluster tbody tr')).toHaveCount(0);
  // Until the click takes effect, the page requests the layout every second with the token. So the
  // test counts requests only from the reload on.
  const since = asked.slice(before);
  const anew = since.slice(since.findIndex((request) => request.isNavigationRequest()));
  expect(anew.map((request) => new URL(request.url()).pathname)).toContain('/ui/events');
  const sent = await Promise.all(anew.map((request) => request.allHeaders()));
  expect(sent.filter((headers) => headers.authorization)).toEqual([]);
  expect(await page.evaluate(() => ({ ...sessionStorage }))).toEqual({});
  await page.goBack().catch(() => {});
  await page.goto(`${shared.cluster.urls[0]}/ui`);
  await expect(state(page)).toHaveText('not logged in');
});

test('a token that is wrong is told, and is not asked with again', async ({ login }) => {
  const { page, asked } = login;
  await enter(page, 'kvorum_wrong');
  await expect(page.locator('#login-said')).toContainText('the token is unknown here');
  await expect(button(page, 'Log in').last()).toBeVisible();
  await expect(page.locator('#session')).toHaveText('Log in');
  const by = await Promise.all(asked.map((request) => request.allHeaders()));
  const wrongly = by.filter((headers) => headers.authorization === 'Bearer kvorum_wrong');
  expect(wrongly.length).toBeLessThanOrEqual(2);
  await enter(page, 'kvorum_wröng');
  await expect(page.locator('#login-said')).toContainText('letters, digits and signs');
  await enter(page, ADMIN);
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
});

test('what a token is not good for is said by the panels', async ({ login, shared }) => {
  const { page } = login;
  await enter(page, token(shared, 'sees', 'metrics'));
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
  await expect(panel(page, 'Cluster').locator('tbody tr')).toHaveCount(2);
  for (const name of ['Members', 'Profile']) {
    await expect(panel(page, name)).toContainText(
      'this is for tokens for admin, and token "sees" is for metrics',
    );
  }
  await look(page, 'k');
  await expect(page.locator('#found')).toContainText('this is for tokens for data');
  await expect(page.locator('#session')).toHaveText('Log out');
});

test('who only administers sees members, and who only reads looks keys up', async (
  { login, shared },
) => {
  const { page } = login;
  await enter(page, token(shared, 'acts', 'admin'));
  await expect(state(page)).toHaveText('no access to metrics');
  await expect(panel(page, 'Cluster')).toContainText('token "acts" is for admin');
  await expect(panel(page, 'Members').locator('tbody tr')).toHaveCount(2);
  await expect(panel(page, 'Members').locator('td.role').first()).toHaveText('membercouncil');
  await panel(page, 'Members').getByLabel('Weight of node-1').fill('2');
  await button(page, 'Plan').click();
  await expect(page.locator('#planned')).toContainText('Plan for epoch');
  await button(page, 'Discard').click();
  await button(page, 'Log out').click();
  await expect(state(page)).toHaveText('not logged in');
  await enter(page, token(shared, 'reads', 'data', '--prefix', 'users/'));
  await expect(state(page)).toHaveText('no access to metrics');
  await look(page, 'users/1');
  await expect(page.locator('#found')).toContainText('No replica that answered has this key.');
  await look(page, 'other');
  await expect(page.locator('#found')).toContainText('keys that begin with "users/" only');
  await button(page, 'Log out').click();
  await expect(state(page)).toHaveText('not logged in');
  // The page shows no value with a token that only permits writes.
  await enter(page, token(shared, 'writes', 'data', '--methods', 'write'));
  await look(page, 'users/1');
  await expect(page.locator('#found')).toContainText('token "writes"');
  await expect(page.locator('.facts')).toHaveCount(0);
});

test('a token that is revoked ends the page, and the next one begins it anew', async (
  { login, shared },
) => {
  const { page } = login;
  await enter(page, token(shared, 'short', 'metrics,admin'));
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
  kvorum('token', 'revoke', 'short', '--url', shared.cluster.urls[0], '--token-file',
    path.join(shared.files, 'admin'));
  await expect(state(page)).toHaveText('not logged in');
  await expect(page.locator('#login-said')).toContainText('it was revoked');
  expect(await page.evaluate(() => ({ ...sessionStorage }))).toEqual({});
  await expect(panel(page, 'Cluster').locator('table')).toBeHidden();
  await enter(page, token(shared, 'next', 'metrics,admin'));
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
  await expect(panel(page, 'Cluster').locator('table')).toBeVisible();
});

/** A cluster whose node names would become elements if the page took them as markup. */
class Named extends Cluster {
  name(node) {
    return `<h6>node-${node + 1}`;
  }
}

const named = base.extend({
  shared: async ({}, use) => {
    const made = files();
    const cluster = await Named.start(2, ['--admin-token-file', path.join(made, 'admin')]);
    await use({ cluster, files: made });
    await cluster.stop();
    fs.rmSync(made, { recursive: true, force: true });
  },
});

named('names and keys are text, whatever they look like', async ({ page, shared, wrong }) => {
  const { cluster } = shared;
  await cluster.settled();
  await cluster.join(['--zone', '<h6>z']);
  await page.goto(`${cluster.urls[0]}/ui`);
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
  await button(page, 'Log in').first().click();
  await enter(page, token(shared, '<h6>t', 'metrics'));
  await expect(panel(page, 'Members')).toContainText('token "<h6>t" is for metrics');
  await button(page, 'Log out').click();
  await expect(page.locator('#session')).toHaveText('Log in');
  // The page's HTML contains "Log in" from the start. This line waits until the page's scripts run
  // and handle clicks.
  await expect(state(page)).toHaveText('2 of 2 nodes reached');
  await button(page, 'Log in').first().click();
  await enter(page, ADMIN);
  const members = panel(page, 'Members');
  await expect(members.locator('tbody')).toContainText('<h6>node-3');
  await expect(members.locator('tbody')).toContainText('<h6>z');
  await members.getByLabel('Change of <h6>node-3').selectOption('joins');
  await button(page, 'Plan').click();
  await expect(page.locator('#planned')).toContainText('<h6>node-3');
  await look(page, '<h6>key</h6>');
  await expect(page.locator('#found')).toContainText('<h6>key</h6> is in partition');
  await cluster.kill(1);
  await expect(state(page)).toHaveText('1 of 2 nodes reached');
  await expect(page.locator('h6')).toHaveCount(0);
  await page.close();
  wrong.length = 0;
});

test('the login fits a phone', async ({ login }) => {
  const { page } = login;
  for (const width of [320, 375, 761]) {
    await page.setViewportSize({ width, height: 740 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(wide, `${width} px wide`).toBeLessThanOrEqual(0);
  }
});

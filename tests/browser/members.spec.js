// Tests of the dashboard's panel of members, which shows the members, and plans, applies, follows
// and aborts changes of the members.
const { test: base, expect, picture } = require('./kvorum');
const { Cluster } = require('./cluster');

/** Each test has a cluster of its own, because it changes the members. */
const test = base.extend({
  cluster: async ({}, use) => {
    const cluster = await Cluster.start(3);
    await cluster.settled();
    await use(cluster);
    await cluster.stop();
  },
  members: async ({ page, cluster }, use) => {
    await page.goto(`${cluster.urls[0]}/ui`);
    await expect(page.getByRole('status').first()).toHaveText('3 of 3 nodes reached');
    await use(page.getByRole('region', { name: /^Members/ }));
    // Closes the page first, because the end of a node would be an error of the page.
    await page.close();
  },
});

const row = (members, name) => members.locator('table.members').getByRole('row')
  .filter({ hasText: new RegExp(`^${name}`) });
const changeSelect = (members, name) => members.getByLabel(`Change of ${name}`);
const button = (members, name) => members.getByRole('button', { name });

/** Applies the plan that the page shows; `name` is the name that the dialog asks for. */
async function apply(members, name) {
  await button(members, 'Apply …').click();
  const dialog = members.page().getByRole('dialog', { name: 'Apply the plan?' });
  await expect(dialog.getByRole('textbox')).toBeFocused();
  await expect(dialog.getByRole('button', { name: 'Apply' })).toBeDisabled();
  await dialog.getByRole('textbox').fill(`${name}x`);
  await expect(dialog.getByRole('button', { name: 'Apply' })).toBeDisabled();
  await dialog.getByRole('textbox').fill(name);
  await dialog.getByRole('button', { name: 'Apply' }).click();
}

/** Returns the texts of a table's cells, row by row. */
const texts = (table) => table.locator('tbody tr').evaluateAll((rows) => (
  rows.map((line) => [...line.children].map((cell) => cell.textContent))));

test('members are shown with what they go by, and the council', async ({ members }) => {
  await expect(members.locator('#layout')).toHaveText(
    'Epoch 1, settled: 3 copies of a key, council node-1, node-2, node-3.',
  );
  for (const name of ['node-1', 'node-2', 'node-3']) {
    const cells = row(members, name);
    await expect(cells.locator('.role')).toHaveText('membercouncil');
    await expect(cells.locator('.zone')).toHaveText('–');
    await expect(cells.getByLabel(`Weight of ${name}`)).toHaveValue('1');
    await expect(cells.locator('.share')).toHaveText('33.3 %');
    await expect(cells.locator('.epoch')).toHaveText('1');
  }
  await expect(button(members, 'Abort the change')).toBeHidden();
});

test('a node that asks to join is added by a plan that shows what moves, and another leaves', async (
  { members, cluster, page },
) => {
  for (let key = 0; key < 50; key += 1) {
    await cluster.ask(0, 'PUT', `/v0/entity?id=key-${key}`, 'value');
  }
  await cluster.join(['--zone', 'z', '--weight', '2']);
  await expect(row(members, 'node-4').locator('.role')).toHaveText('asks to join');
  await expect(row(members, 'node-4').locator('.zone')).toHaveText('z');
  await changeSelect(members, 'node-4').selectOption('joins');
  await changeSelect(members, 'node-2').selectOption('leaves');
  await button(members, 'Plan').click();
  const plan = members.locator('#planned');
  await expect(plan.getByRole('heading')).toHaveText('Plan for epoch 1');
  const nodes = await texts(plan.locator('table.planned'));
  expect(nodes.map(([name, change]) => [name, change])).toEqual([
    ['node-1', 'stays'], ['node-2', 'leaves'], ['node-3', 'stays'], ['node-4', 'joins'],
  ]);
  expect(nodes[1][3]).toBe('–');
  expect(nodes[3][3]).toMatch(/^[01]\.\d{3} × its share$/);
  const moves = await texts(plan.locator('table.moves'));
  expect(moves).toEqual([['node-2', 'node-4', '65,536', expect.stringMatching(/^about .*B$/)]]);
  await expect(plan).toContainText('In all 65,536 copies of partitions move');
  await expect(plan).toContainText('Council afterwards: node-1, node-3, node-4.');
  await picture(members, 'dashboard-members');
  for (const width of [320, 375, 761, 1180, 1440]) {
    await page.setViewportSize({ width, height: 800 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(wide, `${width} px wide`).toBeLessThanOrEqual(0);
    const lines = await members.locator('tbody td.change select').evaluateAll((all) => (
      all.map((one) => one.getBoundingClientRect().height)));
    expect(Math.max(...lines), `${width} px wide`).toBeLessThan(50);
  }
  await button(members, 'Apply …').click();
  const dialog = page.getByRole('dialog', { name: 'Apply the plan?' });
  await expect(dialog).toContainText('node-4 joins, node-2 leaves.');
  await expect(dialog).toContainText('To apply it, type node-1');
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await expect(button(members, 'Apply …')).toBeFocused();
  await expect(members.locator('#layout')).toContainText('Epoch 1, settled');
  await apply(members, 'node-1');
  await expect(plan).toBeEmpty();
  await expect(members.locator('#layout')).toHaveText(
    'Epoch 5, settled: 3 copies of a key, council node-1, node-3, node-4.',
  );
  // The page no longer reports a change that is settled.
  await expect(members.locator('#changing')).toBeEmpty();
  await expect(row(members, 'node-2')).toHaveCount(0);
  await expect(row(members, 'node-4').locator('.role')).toHaveText('membercouncil');
  await expect(row(members, 'node-4').locator('.epoch')).toHaveText('5');
  await expect(row(members, 'node-4').locator('.share')).toHaveText('50.0 %');
  const got = await cluster.ask(3, 'GET', '/v0/entity?id=key-7');
  expect([got.status, got.text]).toEqual([200, 'value']);
});

test('weights and copies are planned too, and a plan can be discarded', async ({ members }) => {
  await members.getByLabel('Weight of node-1').fill('3');
  await members.getByLabel('Copies of a key').fill('2');
  await button(members, 'Plan').click();
  const plan = members.locator('#planned');
  // Each node holds all keys, and a node that is to hold fewer keys pulls nothing.
  await expect(plan).toContainText('Nothing moves. Council afterwards: node-1, node-2, node-3.');
  const nodes = await texts(plan.locator('table.planned'));
  expect(nodes[0]).toEqual(['node-1', 'stays', '1.000 × its share', expect.stringMatching(/^0\.9/)]);
  await button(members, 'Discard').click();
  await expect(plan).toBeEmpty();
  await expect(button(members, 'Plan')).toBeFocused();
  await expect(members.locator('#layout')).toContainText('Epoch 1, settled: 3 copies');
});

test('a change that waits for a node is aborted', async ({ members, cluster }) => {
  await cluster.kill(2);
  await expect(row(members, 'node-3').locator('.role')).toContainText('not reached');
  await members.getByLabel('Weight of node-1').fill('2');
  await button(members, 'Plan').click();
  await expect(members.locator('.warning')).toContainText('choose “is lost with its disk” for it');
  await apply(members, 'node-1');
  await expect(members.locator('#layout')).toContainText('Epoch 2, prepare');
  await expect(members.locator('#layout')).toContainText('Waiting until all nodes are up');
  await button(members, 'Abort the change').click();
  await expect(members.locator('#layout')).toContainText('Epoch 3, settled');
  await expect(button(members, 'Abort the change')).toBeHidden();
  await expect(members.locator('#changing')).toBeEmpty();
  await expect(members.getByLabel('Weight of node-1')).toHaveValue('1');
});

test('what is refused is told, and a warning is shown before', async ({ members, wrong }) => {
  await changeSelect(members, 'node-3').selectOption('leaves');
  await button(members, 'Plan').click();
  await expect(members.locator('#changing')).toContainText('2 nodes would be left, fewer than replicas 3');
  await expect(members.locator('#changing')).toContainText('lower “Copies of a key”');
  expect(wrong.splice(0).join()).toContain('400');
  await changeSelect(members, 'node-3').selectOption('is lost with its disk');
  await members.getByLabel('Copies of a key').fill('2');
  await button(members, 'Plan').click();
  await expect(members.locator('.warning').first()).toBeVisible();
  const warnings = (await members.locator('.warning').allTextContents()).join('\n');
  expect(warnings).toContain('what only node-3 held is lost');
  expect(warnings).toContain('the council shrinks from 3 nodes to 1');
});

test('progress is shown by receiver', async ({ members, page }) => {
  const told = (node, hasAll, sources, bytes) => (
    { node, epoch: 7, has_all: hasAll, sources, of_sources: 3, records: 10, bytes });
  const nodes = ['node-1', 'node-2'].map((name, id) => ({ name, url: 'http://h:1', weight: 1, id }));
  const layout = {
    node: 'node-1', epoch: 7, stage: 'read old', replicas: 2, nodes, council: ['node-1'],
    has_vote: true, moves: [told('node-1', false, 1, 2048), told('node-2', true, 3, 4096)],
  };
  await page.route('**/admin/layout', (route) => route.fulfill({ json: layout }));
  const bars = members.locator('#moving').getByRole('listitem');
  await expect(bars).toHaveText(['node-12.00 KiB, 1 of 3 nodes', 'node-2all, 4.00 KiB']);
  await expect(members.getByRole('meter', { name: 'node-1 has taken' })).toHaveJSProperty('value', 1);
  await expect(members.locator('#layout')).toContainText('Keys move;');
  await expect(button(members, 'Abort the change')).toBeVisible();
  layout.has_vote = false;
  layout.moves = [];
  await expect(bars).toHaveCount(0);
  await expect(members.locator('#layout')).toContainText("dashboards of the council's nodes");
});

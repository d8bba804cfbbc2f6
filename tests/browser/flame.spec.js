// Flame graphs: the page that `kvorum profile diff` writes from two artificial recordings, and the
// graphs of a report.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const { test, expect, kvorum } = require('./kvorum');
const runs = require('./runs');

const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'kvorum-flame-'));
test.afterAll(() => fs.rmSync(scratch, { recursive: true, force: true }));

const PARSE = 'kvorum::http::parse';
const INSERT = 'lsm::memtable::Memtable::insert';
const ROW = 18; // Height of a row of the graph, in pixels.

function write(name, parse, insert) {
  const file = path.join(scratch, `${name}-cpu.folded`);
  fs.writeFileSync(file, `loop-0;${PARSE} ${parse}\nloop-0;${INSERT};<i>at</i> ${insert}\n`);
  return file;
}

/** Opens a difference of recordings: two frames have shares of 60 and 40 %, then 30 and 70 %. */
async function openDifference(page) {
  const file = path.join(scratch, 'difference.html');
  kvorum('profile', 'diff', write('before', 60, 40), write('after', 300, 700), '-o', file);
  await page.goto(pathToFileURL(file).href);
  await expect(page.locator('canvas')).toHaveAttribute('data-boxes', '5');
}

/** Opens a report of two runs. The first has profiles of two events, the second of one event. */
async function openReport(page) {
  const one = runs.write(scratch, 'one', { profiles: ['cpu', 'lock'] });
  const two = runs.write(scratch, 'two', { profiles: ['cpu'], cpu: 60 });
  const file = path.join(scratch, 'report.html');
  kvorum('bench', 'report', one, two, '-o', file);
  await page.goto(pathToFileURL(file).href);
}

/** Returns a point of the graph: `row` counts from the top, `share` is a fraction of the width. */
async function at(page, row, share) {
  const box = await page.locator('canvas').boundingBox();
  return { position: { x: box.width * share, y: (row + 0.5) * ROW } };
}

const info = (page) => page.locator('.flame-info');

test('what a frame had and has is said, in shares of each recording', async ({ page }) => {
  await openDifference(page);
  await page.locator('canvas').hover(await at(page, 2, 0.1));
  await expect(info(page)).toHaveText(`${PARSE}\n60.00 % → 30.00 % (−30.00 pp)`);
  await page.locator('canvas').hover(await at(page, 2, 0.5));
  await expect(info(page)).toHaveText(`${INSERT}\n40.00 % → 70.00 % (+30.00 pp)`);
});

test('widths are of the second recording, or of the first', async ({ page }) => {
  await openDifference(page);
  await page.getByLabel('Widths of').selectOption('base');
  await page.locator('canvas').hover(await at(page, 2, 0.5));
  await expect(info(page)).toContainText(PARSE);
});

test('a click zooms, the button and Escape zoom out', async ({ page }) => {
  await openDifference(page);
  const canvas = page.locator('canvas');
  await canvas.click(await at(page, 2, 0.9));
  // The zoom removes everything beside the frame: the root, the thread, the frame and its callees
  // remain.
  await expect(canvas).toHaveAttribute('data-boxes', '4');
  await canvas.hover(await at(page, 2, 0.1));
  await expect(info(page)).toContainText(INSERT);
  await page.getByRole('button', { name: 'Reset zoom' }).click();
  await expect(canvas).toHaveAttribute('data-boxes', '5');
  await canvas.click(await at(page, 2, 0.9));
  await canvas.press('Escape');
  await expect(canvas).toHaveAttribute('data-boxes', '5');
});

test('a regular expression is found, with its share', async ({ page }) => {
  await openDifference(page);
  const search = page.getByRole('searchbox');
  await search.fill('memtable|<i>');
  // Each stack counts once, although two of its frames match.
  await expect(page.locator('.flame-bar output')).toHaveText(/^70\.00 % matched/);
  await search.fill('(');
  await expect(page.locator('.flame-bar output')).toContainText('regular expression');
  await search.press('Escape');
  await expect(search).toHaveValue('');
  await expect(page.locator('.flame-bar output')).toBeEmpty();
});

test('everything goes by keyboard', async ({ page }) => {
  await openDifference(page);
  const canvas = page.locator('canvas');
  await canvas.focus();
  await canvas.press('ArrowDown');
  await expect(info(page)).toContainText('loop-0');
  await canvas.press('ArrowDown');
  await expect(info(page)).toContainText(INSERT);
  await canvas.press('ArrowLeft');
  await expect(info(page)).toContainText(PARSE);
  await canvas.press('Enter');
  await expect(canvas).toHaveAttribute('data-boxes', '3');
  await canvas.press('/');
  await expect(page.getByRole('searchbox')).toBeFocused();
});

test('a table adds up by module, crate and function', async ({ page }) => {
  await openDifference(page);
  const names = page.locator('.flame table tbody td:first-child');
  await expect(names).toHaveText(['[native]', 'lsm::memtable', 'kvorum::http']);
  const level = page.locator('.flame details select');
  await level.selectOption('crate');
  await expect(names).toHaveText(['[native]', 'lsm', 'kvorum']);
  await level.selectOption('function');
  await expect(names).toHaveText(['<i>at</i>', INSERT, PARSE]);
  await page.getByRole('button', { name: 'First' }).click();
  await expect(names.first()).toHaveText(PARSE);
  await expect(page.locator('.flame table tbody tr').first()).toContainText('−30.00 pp');
});

test('in a report a graph and its difference are tabs over the same stacks', async ({ page }) => {
  await openReport(page);
  const two = page.locator('#flames figure', { hasText: 'two' }).first();
  const tabs = two.getByRole('tab');
  await expect(tabs).toHaveText(['cpu', 'against one']);
  await expect(two.getByRole('tabpanel').first().locator('canvas')).toBeVisible();
  await tabs.first().focus();
  await tabs.first().press('ArrowRight');
  await expect(tabs.last()).toHaveAttribute('aria-selected', 'true');
  await expect(two.locator('.flame-info:visible')).toHaveText('all\n100.00 % → 100.00 % (+0.00 pp)');
});

test('stacks that cannot be unpacked are said to be so', async ({ page }) => {
  const file = path.join(scratch, 'damaged.html');
  kvorum('profile', 'diff', write('before', 1, 1), write('after', 1, 1), '-o', file);
  const html = fs.readFileSync(file, 'utf8');
  fs.writeFileSync(file, html.replace(/"1":"H4sI[^"]*"/, '"1":"H4sIAAAA"'));
  await page.goto(pathToFileURL(file).href);
  await expect(page.locator('.flame')).toContainText('This graph could not be unpacked');
});

test('dark mode is dark, and a phone shows everything', async ({ page }) => {
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.setViewportSize({ width: 375, height: 700 });
  await openDifference(page);
  const colour = await page.locator('.flame').evaluate((one) => getComputedStyle(one).backgroundColor);
  const [red, green, blue] = colour.match(/\d+/g).map(Number);
  expect(Math.max(red, green, blue)).toBeLessThan(60);
  for (const open of [openDifference, openReport]) {
    await open(page);
    for (const table of await page.locator('.flame details').all()) {
      await table.evaluate((details) => { details.open = true; });
    }
    const widths = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    expect(widths[0]).toBeLessThanOrEqual(widths[1]);
  }
});

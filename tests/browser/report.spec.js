// The report of `kvorum bench report` over artificial run directories (`runs.js`), opened as a
// file. The tests check that the report sends no requests to other machines.
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const { test, expect, kvorum, root, picture } = require('./kvorum');
const runs = require('./runs');

const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'kvorum-report-'));
test.afterAll(() => fs.rmSync(scratch, { recursive: true, force: true }));

let pages = 0;

/** Creates a report over `directories`, and opens it in `page`. */
async function open(page, directories, ...flags) {
  const file = path.join(scratch, `report-${(pages += 1)}.html`);
  kvorum('bench', 'report', ...directories, '-o', file, ...flags);
  await page.goto(pathToFileURL(file).href);
}

const refusedWarning = { code: 'non-2xx', text: '0.1 % of the answers (900) were neither 2xx nor 3xx' };
const profiles = ['cpu', 'lock'];
let nodes, baseline, search, sweep, coldhot, seeds;

test.beforeAll(() => {
  nodes = runs.write(scratch, 'three-nodes', { nodes: 3, profiles, refused: 900, warnings: [refusedWarning] });
  baseline = runs.write(scratch, 'baseline', { base: 1.1, tail: 35, profiles: ['cpu'], cpu: 60 });
  search = runs.search(scratch, 'search-put');
  sweep = runs.sweep(scratch, 'sweep-loops');
  coldhot = runs.coldhot(scratch, 'cold-hot');
  seeds = path.join(scratch, 'seeds');
  const texts = path.join(root, 'crates/load/tests/seeds');
  const files = fs.readdirSync(texts).filter((file) => !file.startsWith('004'));
  kvorum('bench', 'import', ...files.map((file) => path.join(texts, file)), '-o', seeds);
});

/** Returns the drawing of a chart that is visible at the window's width. */
const drawing = (page, id) => page.locator(`#${id} > svg:visible`);

test('verdict and warnings come before every figure', async ({ page }) => {
  await open(page, [nodes, baseline]);
  const verdict = page.locator('.verdict').first();
  await expect(verdict).toContainText('Read this first');
  const warning = page.locator('#validity .warnings li');
  await expect(warning).toContainText('0.1 % of the answers (900)');
  const above = await warning.boundingBox();
  const table = await page.locator('#figures').boundingBox();
  expect(above.y + above.height).toBeLessThanOrEqual(table.y);
});

test('a run without warnings is said to be sound', async ({ page }) => {
  await open(page, [baseline]);
  await expect(page.locator('.verdict.good')).toContainText('No warnings');
});

test('curves lie over each other on an axis of percentiles', async ({ page }) => {
  await open(page, [nodes, baseline]);
  const chart = drawing(page, 'percentiles');
  for (const tick of ['90 %', '99 %', '99.9 %', '99.99 %', '10 ms']) {
    await expect(chart.locator('.axis text', { hasText: new RegExp(`^${tick}$`) })).toBeVisible();
  }
  await expect(chart.locator('g.line')).toHaveCount(2);
  await expect(chart.locator('path.thin')).toHaveCount(2);
  // Percentiles p whose 1/(1-p) are successive powers of ten have equal distances.
  const places = await chart.locator('.axis text').evaluateAll((texts) => texts
    .filter((text) => / %$/.test(text.textContent)).map((text) => Number(text.getAttribute('x'))));
  const steps = places.slice(1, -1).map((place, i) => place - places[i]);
  for (const step of steps) expect(Math.abs(step - steps[0])).toBeLessThan(0.5);
  await picture(page.locator('#percentiles'), 'report-percentiles');
});

test('a run is switched off and on in the chart', async ({ page }) => {
  await open(page, [nodes, baseline]);
  const button = page.locator('#percentiles .legend button', { hasText: 'baseline' });
  const line = drawing(page, 'percentiles').locator('g.line[data-switch="1"]');
  await expect(line).toBeVisible();
  await button.click();
  await expect(button).toHaveAttribute('aria-pressed', 'false');
  await expect(line).toBeHidden();
  await button.press('Enter');
  await expect(line).toBeVisible();
});

test('one cursor runs over all charts of a time line, by pointer and by keyboard', async ({ page }) => {
  await open(page, [nodes]);
  const rate = drawing(page, 'run-0-rate');
  await rate.scrollIntoViewIfNeeded();
  await rate.hover({ position: { x: 400, y: 60 } });
  await expect(page.locator('#tip b')).toContainText(' s');
  for (const word of ['answered', 'p99', 'Backlog', '127.0.0.1:8081']) {
    await expect(page.locator('#tip')).toContainText(word);
  }
  for (const id of ['rate', 'latency', 'backlog', 'metric-0']) {
    await expect(drawing(page, `run-0-${id}`).locator('.cursor line')).toHaveCount(1);
  }
  await page.mouse.move(0, 0);
  await expect(page.locator('#tip')).toHaveCount(0);
  await rate.focus();
  await page.keyboard.press('ArrowRight');
  await expect(page.locator('#tip b')).toHaveText('1 s');
  await page.keyboard.press('ArrowRight');
  await expect(page.locator('#tip b')).toHaveText('2 s');
  await page.keyboard.press('Escape');
  await expect(page.locator('#tip')).toHaveCount(0);
});

test('each server has its column, and hits are told as a ratio', async ({ page }) => {
  await open(page, [nodes]);
  const servers = page.locator('table.servers').first();
  await expect(servers.locator('thead th')).toHaveText(['', 'http://127.0.0.1:8080', 'http://127.0.0.1:8081', 'http://127.0.0.1:8082']);
  await expect(servers.locator('tr', { hasText: 'block cache hit ratio' }).locator('td').first()).toHaveText('90 %');
  await expect(page.locator('dl', { hasText: 'status 503' }).first()).toContainText('900');
});

test('what was run is told exactly, and nothing in it is taken for markup', async ({ page }) => {
  await open(page, [nodes]);
  await expect(page.locator('pre', { hasText: 'kvorum-bench load -t2' })).toContainText('-R20000');
  await expect(page.locator('pre', { hasText: 'wrk.body' })).toHaveText(runs.HOSTILE);
  await expect(page.locator('img')).toHaveCount(0);
  await expect(page.locator('.facts', { hasText: 'Measured by' })).toContainText('a1b2c3d');
});

test('a search shows where it breaks, with the verdict of every trial', async ({ page }) => {
  await open(page, [search]);
  await expect(page.locator('.verdict').first()).toContainText('holds 41,000/s within p99<10ms,errors<0.1% and breaks by 43,000/s');
  const chart = drawing(page, 'series-0-curve');
  await expect(chart.locator('.point')).toHaveCount(9);
  await expect(chart.locator('.point .fail')).toHaveCount(4);
  await expect(chart.locator('.band rect')).toHaveCount(1);
  await expect(chart.locator('.level text')).toHaveText('objective p99 < 10 ms');
  await expect(page.locator('table.trials tbody tr')).toHaveCount(9);
  await expect(page.locator('table.trials')).toContainText('the backlog grew');
  // At first the chart shows only the trials next to the breaking point.
  await expect(drawing(page, 'percentiles').locator('g.line:visible')).toHaveCount(2);
  await picture(page, 'report-search', { fullPage: false });
});

test('a sweep has a row for each value', async ({ page }) => {
  await open(page, [sweep]);
  await expect(page.locator('table.sweep tbody th')).toHaveText(['loops=1', 'loops=2', 'loops=4']);
  await expect(page.locator('table.sweep tbody tr').last()).toContainText('60,000');
});

test('cold and hot runs stand side by side', async ({ page }) => {
  await open(page, [coldhot]);
  const get = page.locator('table.pair', { hasText: 'get' });
  await expect(get.locator('tr', { hasText: 'p50' })).toContainText('50 % faster');
  await expect(page.locator('#flames .flames > figure')).toHaveCount(4);
});

test('flame graphs stand side by side with their difference', async ({ page }) => {
  await open(page, [nodes, baseline]);
  await expect(page.locator('#flames h3')).toHaveText(['cpu', 'lock']);
  await expect(page.locator('#flames figure', { hasText: 'baseline' })).toContainText('against three-nodes');
});

test('the seeds: their mistakes come first, their curves are drawn', async ({ page }) => {
  await open(page, [seeds], '--title', 'Five reports');
  await expect(page).toHaveTitle('Five reports');
  const first = page.locator('#validity .warnings > li').first();
  await expect(first).toContainText('100 % of the answers (1199957 of 1199957) were neither 2xx nor 3xx');
  await expect(page.locator('#validity')).toContainText('held only on paper');
  await expect(page.locator('table.runs tbody tr')).toHaveCount(14);
  await expect(page.locator('#percentiles .legend button')).toHaveCount(10);
  await page.locator('table.runs a', { hasText: '003-worker-pool-2' }).click();
  await expect(page.locator('details.run[open]')).toContainText('no percentiles at all');
  await picture(page, 'report-seeds', { fullPage: true });
});

test('a chart is saved as a picture that stands alone', async ({ page }) => {
  await open(page, [nodes]);
  const download = page.waitForEvent('download');
  await page.locator('#percentiles .export').click();
  const saved = path.join(scratch, 'chart.svg');
  await (await download).saveAs(saved);
  const text = fs.readFileSync(saved, 'utf8');
  expect(text).toMatch(/^<svg [^>]*xmlns="http:\/\/www.w3.org\/2000\/svg"/);
  expect(text).not.toContain('var(');
  await page.goto(pathToFileURL(saved).href);
  await expect(page.locator('text', { hasText: '99.9 %' }).first()).toBeVisible();
});

test('a phone shows everything without scrolling sideways', async ({ page }) => {
  await page.setViewportSize({ width: 375, height: 700 });
  await open(page, [nodes, search]);
  const widths = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  expect(widths[0]).toBeLessThanOrEqual(widths[1]);
  const text = drawing(page, 'percentiles').locator('.axis text').first();
  const size = await text.evaluate((one) => one.getBoundingClientRect().height);
  expect(size, 'height of a letter on the axis').toBeGreaterThan(9);
  await picture(page, 'report-phone', { fullPage: false });
});

test('dark mode is dark, and its lines are seen', async ({ page }) => {
  await page.emulateMedia({ colorScheme: 'dark' });
  await open(page, [nodes, baseline]);
  const lightness = (element, property) => element.evaluate((one, name) => {
    const [r, g, b] = getComputedStyle(one)[name].match(/[\d.]+/g).map(Number);
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
  }, property);
  expect(await lightness(page.locator('body'), 'backgroundColor')).toBeLessThan(0.15);
  expect(await lightness(page.locator('body'), 'color')).toBeGreaterThan(0.8);
  const line = drawing(page, 'percentiles').locator('g.line').first();
  expect(await lightness(line, 'color')).toBeGreaterThan(0.3);
  await picture(page, 'report-dark', { fullPage: false });
});

test('everything can be read without scripts', async ({ browser }) => {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await open(page, [nodes, baseline]);
  await expect(page.locator('#percentiles > svg.wide g.line')).toHaveCount(2);
  await expect(page.locator('#validity')).toContainText('0.1 % of the answers');
  await expect(page.locator('.export').first()).toBeHidden();
  await context.close();
});

test('a directory without runs is refused in one line', () => {
  const empty = path.join(scratch, 'empty');
  fs.mkdirSync(empty);
  expect(() => kvorum('bench', 'report', empty)).toThrow(/neither it nor a directory in it has a run.json/);
});

// Tests of the watch over pages (`kvorum.js`): if the watch missed errors, pages with errors would
// pass all other tests.
const { test, expect } = require('./kvorum');

test('a page without faults passes', async ({ page, wrong }) => {
  await page.goto('data:text/html,<p>fine');
  await expect(page.locator('p')).toHaveText('fine');
  expect(wrong).toEqual([]);
});

test('errors, exceptions and requests to others are seen', async ({ page, wrong }) => {
  const script = `console.error('told'); new Image().src = 'http://elsewhere.invalid/a.png';
    setTimeout(() => { throw new Error('thrown'); })`;
  await page.goto(`data:text/html,<script>${encodeURIComponent(script)}</script>`);
  await expect.poll(() => wrong.join('\n')).toContain('console: told');
  await expect.poll(() => wrong.join('\n')).toContain('exception: thrown');
  await expect.poll(() => wrong.join('\n')).toContain('network: http://elsewhere.invalid/a.png');
  // The browser itself logs the failed request as an error.
  await expect.poll(() => wrong.join('\n')).toContain('net::ERR_');
  wrong.length = 0;
});

// The base of all browser tests: a page whose errors fail the test, the `kvorum` binary, and
// screenshots for docs/images.
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { test: base, expect } = require('@playwright/test');

const root = path.resolve(__dirname, '../..');
const binary = process.env.KVORUM ?? path.join(root, 'target/debug/kvorum');

/** URLs that a page may request: its own file, embedded resources, and a node on this machine. */
const OWN = /^(file|data|blob|about):|^http:\/\/(127\.0\.0\.1|localhost|\[::1\])[:/]/;

/** Watches `page`; returns a list that grows by each error of the page. */
function watch(page) {
  const wrong = [];
  page.on('console', (message) => {
    if (message.type() === 'error') wrong.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => wrong.push(`exception: ${error.message}`));
  page.on('request', (request) => {
    if (!OWN.test(request.url())) wrong.push(`network: ${request.url()}`);
  });
  return wrong;
}

/**
 * Playwright's `test`, which fails if the page logs an error, throws, or sends a request beyond
 * this machine. A test that provokes an error removes the error from `wrong`.
 */
const test = base.extend({
  wrong: async ({ page }, use) => use(watch(page)),
  quiet: [
    async ({ wrong }, use) => {
      await use();
      expect(wrong, 'what the page did wrong').toEqual([]);
    },
    { auto: true },
  ],
});

/** Runs `kvorum ARGS` to its end; returns its stdout. */
function kvorum(...args) {
  return execFileSync(binary, args, { encoding: 'utf8', timeout: 60_000 });
}

/**
 * Saves a picture of the page, or of a part of it, as docs/images/NAME.png, but only if
 * UPDATE_SCREENSHOTS=1 requests it: pixels differ between machines and prove nothing.
 */
async function picture(subject, name, options = {}) {
  if (process.env.UPDATE_SCREENSHOTS !== '1') return;
  const file = path.join(root, 'docs/images', `${name}.png`);
  fs.mkdirSync(path.dirname(file), { recursive: true });
  await subject.screenshot({ path: file, ...options });
}

module.exports = { test, expect, watch, kvorum, binary, root, picture };

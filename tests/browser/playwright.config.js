// How the browser tests run: Debian's Chromium, without a display, on whatever page a test opens.
// No web server is configured: a test starts the nodes it needs, on ports that the system gives it.
const { defineConfig } = require('@playwright/test');

module.exports = defineConfig({
  testDir: '.',
  testMatch: '*.spec.js',
  // Two cores at most: a node, a browser and a test share them.
  workers: 1,
  // A deadline, not an expectation: all of a test's waiting is for a condition.
  timeout: 60_000,
  expect: { timeout: 20_000 },
  retries: 0,
  forbidOnly: true,
  reporter: [['list']],
  outputDir: '../../target/browser-tests',
  use: {
    // A failure then names the action that it waited for.
    actionTimeout: 20_000,
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      // A container's root has no user namespaces for the sandbox, and often a tiny /dev/shm.
      args: ['--no-sandbox', '--disable-dev-shm-usage'],
    },
    screenshot: 'only-on-failure',
    trace: 'off',
  },
});

// Playwright's configuration: runs Debian's Chromium without a display. No web server is
// configured, because a test starts the nodes that it needs, on ports that the system assigns.
const { defineConfig } = require('@playwright/test');

module.exports = defineConfig({
  testDir: '.',
  testMatch: '*.spec.js',
  // A node, a browser and a test share the machine's cores, of which there may be only two.
  workers: 1,
  // Deadlines in milliseconds. A test waits for conditions, so it usually ends much earlier.
  timeout: 60_000,
  expect: { timeout: 20_000 },
  retries: 0,
  forbidOnly: true,
  reporter: [['list']],
  outputDir: '../../target/browser-tests',
  use: {
    // With a timeout for each action, a failure names the action that waited.
    actionTimeout: 20_000,
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      // In a container, root often lacks user namespaces for the sandbox, and /dev/shm is often
      // tiny.
      args: ['--no-sandbox', '--disable-dev-shm-usage'],
    },
    screenshot: 'only-on-failure',
    trace: 'off',
  },
});

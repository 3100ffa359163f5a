"""JavaScript and TypeScript: repositories with a package.json whose tests are run by node's own runner or by vitest."""

// Inside the sandbox: load source files one after the other; each is reported as a test whose id is its path.
import fs from 'node:fs'
import process from 'node:process'
import { pathToFileURL } from 'node:url'
import { resolve } from 'node:path'

const { nonce, fd, paths } = JSON.parse(fs.readFileSync(0, 'utf8'))
const { writeSync } = fs

function send (event) {
  let data = Buffer.from(`${nonce} ${JSON.stringify(event)}\n`)
  while (data.length) data = data.subarray(writeSync(fd, data))
}

process.on('uncaughtException', () => {})
for (const path of paths) {
  send(['items', [path]])
  send(['start', path])
  let outcome = 'passed'
  let message = ''
  try {
    await import(pathToFileURL(resolve(path)).href)
  } catch (error) {
    outcome = 'failed'
    message = String(error?.message ?? error).split('\n')[0].slice(0, 500)
  }
  send(['report', path, 'call', outcome, false, 0, message])
  send(['report', path, 'teardown', 'passed', false, 0, ''])
}
send(['done'])
process.exit(0)

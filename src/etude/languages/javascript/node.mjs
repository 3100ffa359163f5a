// Inside the sandbox, loaded before a test file (`--import`) and once more as the reporter of node's test runner, as one module.
// Reads its configuration from standard input: {nonce, fd, path, ids, codes}; writes events (languages/protocol.py) to the descriptor.
import fs from 'node:fs'
import process from 'node:process'
import { afterEach, beforeEach } from 'node:test'
import { relative } from 'node:path'

const { nonce, fd, path, ids, codes } = JSON.parse(fs.readFileSync(0, 'utf8'))
const wanted = ids && new Set(ids)
const prefixes = wanted && new Set(ids.flatMap(above))
const { writeSync } = fs
const { stringify } = JSON
const from = Buffer.from.bind(Buffer)
const cwd = process.cwd()
const active = new Map() // id -> numbers of the definitions that ran in it
let outside = new Set()
let owner = '<collect>' // of what runs outside every test
let lingering = null // a test that ended: what runs until the next one starts is its own, such as its afterEach
let crashes = 0

function send (event) {
  let data = from(`${nonce} ${stringify(event)}\n`)
  while (data.length) data = data.subarray(writeSync(fd, data))
}

function above (id) {
  const parts = id.split(' > ')
  return parts.slice(1).map((_, i) => parts.slice(0, i + 1).join(' > '))
}

function isChosen (id) { // what runs inside a chosen test is a part of it: without it that one would fail
  return wanted.has(id) || above(id).some((outer) => wanted.has(outer))
}

function flush (id) {
  if (id !== null && active.has(id)) {
    send(['reach', id, [...active.get(id)]])
    active.delete(id)
  }
}

if (codes) {
  for (const code of codes) send(['code', ...code])
  Object.defineProperty(globalThis, '__etude', {
    value: (number) => {
      if (!active.size) outside.add(number)
      for (const numbers of active.values()) numbers.add(number)
    }
  })
}

beforeEach((t) => {
  const id = `${path}::${t.fullName}`
  if (codes) {
    flush(lingering)
    lingering = null
    if (outside.size) send(['reach', owner, [...outside]])
    outside = new Set()
    owner = '<between>'
    active.set(id, new Set())
  }
  if (wanted && !prefixes.has(id) && !isChosen(id)) throw new Error('not among the chosen tests')
})

afterEach((t) => {
  if (!codes) return
  const id = `${path}::${t.fullName}`
  if (active.size > 1) flush(id)
  else lingering = id
})

process.on('uncaughtExceptionMonitor', (error) => {
  if (crashes++ < 20) send(['crash', firstLine(error)])
})
process.on('exit', () => {
  if (codes) {
    flush(lingering)
    for (const id of [...active.keys()]) flush(id)
    if (outside.size) send(['reach', owner, [...outside]])
  }
})

function firstLine (error) {
  const text = String(error?.cause?.message ?? error?.message ?? error)
  return (text.split('\n').find((line) => line.trim()) ?? '').trim().slice(0, 500)
}

export default async function * report (source) {
  const titles = []
  for await (const { type, data } of source) {
    if (type === 'test:start') titles.splice(data.nesting, Infinity, data.name)
    if (type !== 'test:pass' && type !== 'test:fail') continue
    if (data.details?.type === 'suite') continue
    const id = `${path}::${[...titles.slice(0, data.nesting), data.name].join(' > ')}`
    if (data.nesting === 0 && data.file && data.name === data.file) { // the file itself, which could not be loaded
      send(['error', path, firstLine(data.details?.error)])
      continue
    }
    if (wanted && !wanted.has(id)) continue
    const failed = type === 'test:fail'
    const todo = data.todo !== undefined && data.todo !== false
    const skipped = data.skip !== undefined && data.skip !== false
    const outcome = skipped || (failed && todo) ? 'skipped' : failed ? 'failed' : 'passed'
    const where = relative(cwd, data.file ?? path)
    send(['items', [id]])
    if (!where.startsWith('..')) send(['where', id, where, data.line ?? 1])
    send(['start', id])
    send(['report', id, 'call', outcome, todo, (data.details?.duration_ms ?? 0) / 1000, failed ? firstLine(data.details?.error) : ''])
    send(['report', id, 'teardown', 'passed', false, 0, ''])
  }
  send(['done'])
}

// Inside the sandbox, in vitest's main process, where no code of the repository but its configuration runs: start vitest, then send
// what its workers reported. Standard input: {nonce, fd, files, ids, order, seed, codes}; events as in languages/protocol.py.
import fs from 'node:fs'
import process from 'node:process'
import { relative } from 'node:path'

const config = JSON.parse(fs.readFileSync(0, 'utf8'))
const { nonce, fd, files, ids, codes } = config
const wanted = ids && new Set(ids)
const settings = JSON.parse(fs.readFileSync('/env/etude/settings.json', 'utf8'))
const request = `/tmp/etude-request-${process.pid}.json`
const configs = ['vitest.config', 'vite.config'].flatMap((name) => ['ts', 'mts', 'cts', 'js', 'mjs', 'cjs'].map((end) => `${name}.${end}`))

function send (event) {
  let data = Buffer.from(`${nonce} ${JSON.stringify(event)}\n`)
  while (data.length) data = data.subarray(fs.writeSync(fd, data))
}

function firstLine (error) {
  const text = String(error?.message ?? error ?? '')
  return (text.split('\n').find((line) => line.trim()) ?? '').trim().slice(0, 500)
}

fs.writeFileSync(request, JSON.stringify({ ids, order: config.order, seed: config.seed, traced: Boolean(codes) }))
process.env.ETUDE_REQUEST = request
for (const code of codes ?? []) send(['code', ...code])
const { startVitest } = await import('vitest/node')
const conditions = settings.conditions ? settings.conditions.split(' ') : []
const resolve = conditions.length ? { conditions: [...conditions, 'module', 'node', 'import', 'default'] } : {}
const vitest = await startVitest('test', [], {
  root: process.cwd(),
  config: configs.find((path) => fs.existsSync(path)) ?? false,
  include: files.map((path) => path.replace(/[\\*?[\]{}()!+@|]/g, '\\$&')),
  exclude: [],
  watch: false,
  run: true,
  reporters: [{}],
  runner: '/env/etude/vitest-runner.mjs',
  includeTaskLocation: true,
  fileParallelism: false,
  passWithNoTests: true,
  update: false,
  retry: 0,
  bail: 0,
  coverage: { enabled: false },
  typecheck: { enabled: false },
  api: false
}, { cacheDir: '/tmp/vite', clearScreen: false, logLevel: 'error', resolve, ssr: { resolve }, server: { watch: null } })

const cwd = process.cwd()
for (const file of vitest?.state.getFiles() ?? []) {
  const path = relative(cwd, file.filepath)
  if (file.result?.state === 'fail' && !file.tasks.length) send(['error', path, firstLine(file.result.errors?.[0])])
  if (file.meta?.etude) send(['reach', '<collect>', file.meta.etude])
  if (file.meta?.etudeBetween?.length) send(['reach', '<between>', file.meta.etudeBetween])
  walk(file, [], path)
}
send(['done'])
fs.unlinkSync(request)
await vitest?.close()
process.exit(0)

function walk (group, titles, path) {
  for (const task of group.tasks) {
    const names = [...titles, task.name]
    if (task.type === 'suite') walk(task, names, path)
    else tell(task, `${path}::${names.join(' > ')}`, path)
  }
}

function tell (task, id, path) {
  if (wanted && !wanted.has(id)) return
  send(['items', [id]])
  if (task.location) send(['where', id, path, task.location.line])
  send(['start', id])
  if (task.meta?.etude) send(['reach', id, task.meta.etude])
  const state = task.result?.state
  const outcome = { pass: 'passed', fail: 'failed' }[state] ?? (task.mode === 'skip' || task.mode === 'todo' || state === 'skip' ? 'skipped' : null)
  if (outcome === null) return // never ran: no evidence
  const message = outcome === 'failed' ? firstLine(task.result.errors?.[0]) : ''
  send(['report', id, 'call', outcome, false, (task.result?.duration ?? 0) / 1000, message])
  send(['report', id, 'teardown', 'passed', false, 0, ''])
}

// Inside the sandbox, in vitest's workers: choose and order the tests, and say which definitions ran in which.
import fs from 'node:fs'
import { VitestTestRunner } from 'vitest/runners'

const { ids, order, seed, traced } = JSON.parse(fs.readFileSync(process.env.ETUDE_REQUEST, 'utf8'))
const wanted = ids && new Set(ids)
const active = new Map()
let outside = new Set()
let state = seed >>> 0

function random () { // mulberry32
  state = (state + 0x6d2b79f5) >>> 0
  let t = state
  t = Math.imul(t ^ (t >>> 15), t | 1)
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296
}

if (traced) {
  globalThis.__etude = (number) => {
    if (!active.size) outside.add(number)
    for (const numbers of active.values()) numbers.add(number)
  }
}

function arrange (group, titles, path) {
  if (order === 'reversed') group.tasks.reverse()
  if (order === 'shuffled') {
    for (let i = group.tasks.length - 1; i > 0; i--) {
      const k = Math.floor(random() * (i + 1));
      [group.tasks[i], group.tasks[k]] = [group.tasks[k], group.tasks[i]]
    }
  }
  for (const task of group.tasks) {
    const names = [...titles, task.name]
    if (task.type === 'suite') arrange(task, names, path)
    else if (wanted && !wanted.has(`${path}::${names.join(' > ')}`)) task.mode = 'skip'
  }
  if (wanted && group.tasks.length && group.tasks.every((task) => task.mode === 'skip' || task.mode === 'todo')) group.mode = 'skip'
}

export default class Runner extends VitestTestRunner {
  onCollected (files) {
    super.onCollected?.(files)
    for (const file of files) {
      if (traced) file.meta.etude = [...outside]
      arrange(file, [], file.name)
    }
    outside = new Set()
  }

  onBeforeRunTask (test) {
    if (traced) active.set(test.id, new Set())
    return super.onBeforeRunTask?.(test)
  }

  async onAfterRunTask (test) {
    const result = await super.onAfterRunTask?.(test)
    if (traced && active.has(test.id)) {
      test.meta.etude = [...active.get(test.id)]
      active.delete(test.id)
    }
    return result
  }

  async onAfterRunFiles (files) {
    if (traced) for (const file of files ?? []) file.meta.etudeBetween = [...outside]
    return super.onAfterRunFiles?.(files)
  }
}

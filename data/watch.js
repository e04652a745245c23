const parts = page => [...page.querySelectorAll('[role=status], section')]
const inner = page => parts(page).map(part => part.innerHTML)
let seen = inner(document)
function renew(old, fresh) {
  const folds = () => [...old.querySelectorAll(':scope > details')]
  const title = fold => fold.firstChild.textContent
  const open = folds().filter(fold => fold.open).map(title)
  old.replaceChildren(...fresh.childNodes)
  for (const fold of folds()) fold.open = open.includes(title(fold))
}
async function look() {
  try {
    const text = await (await fetch('')).text()
    const page = new DOMParser().parseFromString(text, 'text/html'), now = inner(page), fresh = parts(page)
    parts(document).forEach((old, n) => { if (seen[n] != now[n]) renew(old, fresh[n]) })
    seen = now
  }
  catch (e) {
    document.querySelector('[role=status]').textContent = 'No answer: the run is no longer served here.'
    seen = []
  }
  setTimeout(look, 2000)
}
setTimeout(look, 2000)

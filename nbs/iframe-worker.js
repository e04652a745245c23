// A worker for pages that are opened from a file, where browsers start none: its script runs in a frame
if (location.protocol === 'file:') {
  window.Worker = class {
    constructor(url) {
      this.waiting = []
      this.frame = document.createElement('iframe')
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => setTimeout(() => this.onmessage && this.onmessage({data}))
      const script = inside.document.createElement('script')
      script.src = new URL(url, location.href)
      script.onload = () => this.begin(inside)
      script.onerror = event => this.onerror && this.onerror(event)
      inside.document.body.append(script)
    }

    begin(inside) {
      this.send = data => inside.dispatchEvent(new inside.MessageEvent('message', {data}))
      this.waiting.splice(0).forEach(this.send)
    }

    postMessage(data) {
      this.send ? this.send(data) : this.waiting.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}

"""The page for people: static files that call the routes of `http`. No build, nothing from outside.

`index.html` loads plain modules: `app.js` shows one view per address, `api.js` calls the server,
`dom.js` makes elements (text is always text, never markup), `charts.js` draws. The styles are in
`page.css`.
"""

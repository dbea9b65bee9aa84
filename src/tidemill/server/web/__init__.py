"""The pages for people: server-rendered, usable without JavaScript, from our own host only. See docs/web.md."""

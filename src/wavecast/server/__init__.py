"""The web page and its API: `wavecast serve`.

The server itself reads no file of a user and traces nothing. It keeps uploads and results
(`store`), and hands every question to a worker process with limits on time and memory (`pool`,
`worker`), which answers it with the same functions as the command line (`answers`).
"""

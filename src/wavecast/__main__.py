"""python -m wavecast"""

from wavecast.cli import main

main()

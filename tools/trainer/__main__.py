"""The command of `tools.trainer.train`, which the processes that compose scenes do not import."""

from tools.trainer.train import main

main()

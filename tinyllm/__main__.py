"""``python -m tinyllm`` is ``tinyllm``."""

import sys

from tinyllm.cli.main import main

sys.exit(main())

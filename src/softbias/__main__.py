import sys

from softbias.cli import main

sys.exit(main())

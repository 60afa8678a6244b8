import sys

from attnflow.cli.main import main

sys.exit(main())

from ergometer.cli import main

main()

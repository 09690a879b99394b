from mink_local.chat.cli import main

main()

"""Sentences for studies of trained models, written for them."""

PLAIN = (
    "The old lighthouse keeper climbed the stairs every evening to light the lamp before the ships came in.",
    "She planted tomatoes behind the house, but the deer ate most of them before they were ripe.",
    "Our train was late again, so we missed the first act of the play and had to wait in the hall.",
    "A good proof explains why a statement is true, and not only that it is true.",
    "The children built a boat out of cardboard and sailed it across the kitchen floor.",
    "When the storm had passed, the fishermen went down to the harbor to look after their nets.",
    "He learned to play the violin at sixty and gave his first concert in the village church.",
    "The committee could not agree on the budget and postponed the vote until next month.",
    "Snow fell all night, and in the morning the street was so quiet that one could hear the birds.",
    "The library keeps a collection of maps that show how the coast has changed over four centuries.",
    "Nobody knew who had painted the portrait, but everyone admired the light on the face.",
    "They walked through the desert for three days before they found the well that the guide had promised.",
)

# One word in two senses.
BANK = {
    "money": (
        "She opened an account at the bank and paid in her first salary.",
        "The bank raised its interest rates again this year.",
        "He asked the bank for a loan to buy the house.",
        "The bank closed three branches and dismissed their clerks.",
        "My bank charges a fee for every transfer abroad.",
        "The robbers left the bank with two bags of cash.",
        "Investors lost their savings when the bank failed.",
        "The central bank printed new notes after the reform.",
        "A teller at the bank counted the coins twice.",
        "The bank refused his credit card at the counter.",
        "They borrowed from the bank to pay their debts.",
        "The bank sent her a statement of the account.",
    ),
    "river": (
        "We sat on the bank and watched the boats go down the river.",
        "The river broke its bank after a week of rain.",
        "Willows grow along the bank of the stream.",
        "He tied the boat to a tree on the bank.",
        "The otter climbed the bank and vanished in the reeds.",
        "Fishermen stood on the bank from dawn to dusk.",
        "Mud from the bank made the water brown.",
        "The path follows the bank of the canal for a mile.",
        "Children threw stones from the bank into the water.",
        "The current carried him to the far bank of the river.",
        "Grass on the bank was wet from the flood.",
        "A heron waited on the bank for a fish.",
    ),
}

"""Whether queues fit other products: what these offer and limit, as their documentation says, against what was seen."""

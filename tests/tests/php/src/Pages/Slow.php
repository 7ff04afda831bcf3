<?php
namespace Pages;

final class Slow implements \Page
{
    public function answer(\Request $request): \Response
    {
        sleep(3);
        return new \Response('late');
    }
}
